import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.telemetry import guard, schema

ALLOWED = [
    "SELECT 1",
    "  select count() from groups ; ",
    "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
    "(SELECT 1) UNION ALL (SELECT 2)",
    "SHOW TABLES",
    "DESCRIBE TABLE samples",
    "EXPLAIN SELECT 1",
    "-- comment; DROP TABLE groups\nSELECT 1 /* ; INSERT INTO */",
    "SELECT 'INTO OUTFILE; file(' AS text, `into`, \"file\" FROM t",
    "SELECT 'it''s', 'a\\'b;c'",
    "SELECT file FROM t",
    "SELECT 1\r\nFROM t",
    "SELECT {a:UInt8} + 1 FROM numbers(3)",
    "SELECT x.1, arrayMap(y -> y + 1, [1, 2]), m['k'], 1e-3, 0x1f FROM t WHERE a != b AND c ? d : e",
    "SELECT format('{} {}', 'a', 'b'), airport(x) FROM t",
]
REFUSED = [
    ("DROP TABLE groups", "begins with 'DROP'"),
    ("INSERT INTO groups VALUES (1)", "begins with 'INSERT'"),
    ("/* SELECT */ TRUNCATE TABLE groups", "begins with 'TRUNCATE'"),
    ("SYSTEM SHUTDOWN", "begins with 'SYSTEM'"),
    ("SET readonly = 0", "begins with 'SET'"),
    ("KILL QUERY WHERE 1", "begins with 'KILL'"),
    ("SELECT 1; SELECT 2", "one statement"),
    ("SELECT 1;; DROP TABLE groups", "one statement"),
    ("SELECT 1 INTO OUTFILE '/tmp/x'", "INTO is not allowed"),
    ("SELECT 1 into/**/outfile '/tmp/x'", "INTO is not allowed"),
    ("EXPLAIN AST SELECT 1 INTO OUTFILE '/tmp/x'", "INTO is not allowed"),
    ("SELECT file('/etc/passwd')", "reaches outside"),
    ("SELECT `file` ('/etc/passwd')", "reaches outside"),
    ("SELECT \"file\"\n('/etc/passwd')", "reaches outside"),
    ("SELECT * FROM FILE('/etc/passwd')", "reaches outside"),
    ("SELECT * FROM url('http://x')", "reaches outside"),
    ("SELECT * FROM s3('http://x')", "reaches outside"),
    ("SELECT * FROM eval('SELECT 1')", "reaches outside"),
    ("SELECT * FROM python(x)", "reaches outside"),
    ("SELECT aiGenerate('x')", "reaches outside"),
    ("SELECT $x$text$x$", "cannot read"),
    ("SELECT 'open", "cannot read"),
    ("SELECT /* open", "cannot read"),
    ("SELECT \u2018x\u2019", "cannot read"),
    ("SELECT 1\x00", "cannot read"),
    ("SELECT 1 -- \r, file('/etc/passwd')", "carriage return"),
    ("", "empty"),
    (" ; ; ", "empty"),
    ("-- nothing", "empty"),
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_question_is_let_through(sql):
    assert guard.check(sql).strip().rstrip(";").strip()


@pytest.mark.parametrize(("sql", "why"), REFUSED)
def test_anything_else_is_refused_and_told_why(sql, why):
    with pytest.raises(Rejected, match=why) as refused:
        guard.check(sql)
    assert refused.value.field == "sql"


def test_every_saved_query_is_a_question():
    for query in schema.saved_queries().values():
        guard.check(query.sql)


@given(st.text(max_size=60))
def test_any_text_is_either_let_through_or_refused(sql):
    try:
        checked = guard.check(sql)
    except Rejected:
        return
    assert not any(token.kind == "end" for token in guard.tokenize(checked))


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=40))
def test_a_string_hides_nothing_and_fakes_nothing(text):
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert guard.check(f"SELECT {quoted} AS x") == f"SELECT {quoted} AS x"
    with pytest.raises(Rejected):
        guard.check(f"SELECT {quoted} INTO OUTFILE {quoted}")


def test_parameters_must_be_the_ones_the_query_has():
    sql = "SELECT {job:String}, { step : UInt64 }, {list:Array(String)}"
    given_values = {"job": "j", "step": "1", "list": "[]"}
    assert guard.bound(sql, given_values) == {"job": "String", "step": "UInt64", "list": "Array(String)"}
    with pytest.raises(Rejected) as missing:
        guard.bound(sql, {"job": "j", "list": "[]"})
    assert missing.value.field == "parameters.step"
    with pytest.raises(Rejected) as unknown:
        guard.bound(sql, {**given_values, "jbo": "x"})
    assert unknown.value.hint == "did you mean 'job'?"
