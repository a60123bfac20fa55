"""What a query may be, judged before any engine sees it.

The engine is what refuses writes: every query runs in a session with `readonly = 1` and limits that it cannot change. This
module refuses the three things that such a session would still allow in an embedded engine: a file written by the client
(`INTO OUTFILE`), functions that reach out of the database (`file('/etc/passwd')`), and several statements in one text.

It reads the query as ClickHouse does, token by token, so that neither a comment nor a string hides or fakes a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from temper.runtime.complaints import nearest
from temper.runtime.errors import Rejected

FIELD = "sql"
FIRST_WORDS = ("SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS")

# Functions of ClickHouse 26.9 that read or call something outside the database, or run text as a query.
OUTSIDE = frozenset(
    [
        "arrowstream",
        "azureblobstorage",
        "azureblobstoragecluster",
        "bigquery",
        "catboostevaluate",
        "cluster",
        "clusterallreplicas",
        "cosn",
        "deltalake",
        "deltalakeazure",
        "deltalakeazurecluster",
        "deltalakecluster",
        "deltalakelocal",
        "deltalakes3",
        "deltalakes3cluster",
        "eval",
        "executable",
        "file",
        "filecluster",
        "filesystem",
        "fuzzquery",
        "gcs",
        "getclienthttpheader",
        "hdfs",
        "hdfscluster",
        "hudi",
        "hudicluster",
        "iceberg",
        "icebergazure",
        "icebergazurecluster",
        "icebergcluster",
        "iceberghdfs",
        "iceberghdfscluster",
        "iceberglocal",
        "iceberglocalcluster",
        "icebergs3",
        "icebergs3cluster",
        "input",
        "jdbc",
        "loop",
        "mongodb",
        "mysql",
        "odbc",
        "oss",
        "paimon",
        "paimonazure",
        "paimonazurecluster",
        "paimoncluster",
        "paimonhdfs",
        "paimonhdfscluster",
        "paimonlocal",
        "paimons3",
        "paimons3cluster",
        "postgresql",
        "prometheusquery",
        "prometheusqueryrange",
        "python",
        "redis",
        "remote",
        "remotesecure",
        "s3",
        "s3cluster",
        "sqlite",
        "url",
        "urlcluster",
        "viewexplain",
        "ytsaurus",
    ]
)
OUTSIDE_PREFIX = re.compile(r"ai[A-Z]|AI[A-Z]")  # aiGenerate and its kind call models over the network

_TOKEN = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]* | \#[!\ ][^\n]* | /\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>[0-9][A-Za-z0-9_.]*)
    | (?P<end>;)
    | (?P<sign>[-+*%=<>!?:,.(){}\[\]|&^~@] | /(?!\*))
    """,
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\{\s*(\w+)\s*:\s*([^{}]+?)\s*\}")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a query that means something. Example: `Token("word", "select", 0)`."""

    kind: str
    """`word`, `quoted`, `string`, `number`, `end` or `sign`."""
    text: str
    """As written."""
    start: int
    """Offset."""


def check(sql: str) -> str:
    """The query with plain line ends and without a trailing semicolon. Raises Rejected, saying what is not allowed."""
    sql = sql.replace("\r\n", "\n")
    if "\r" in sql:  # readers disagree on whether it ends a comment
        raise Rejected("a carriage return is not a line end", field=FIELD)
    tokens = list(tokenize(sql))
    while tokens and tokens[-1].kind == "end":
        sql = sql[: tokens.pop().start]
    if not tokens:
        raise Rejected("the query is empty", field=FIELD)
    _check_statement(tokens)
    for token, following in zip(tokens, [*tokens[1:], Token("end", ";", len(sql))], strict=True):
        if token.kind == "word" and token.text.upper() in {"INTO", "OUTFILE", "INFILE"}:
            raise Rejected(f"{token.text.upper()} is not allowed: queries only read", field=FIELD)
        if following.text == "(" and token.kind in {"word", "quoted"} and _reaches_out(token):
            raise Rejected(f"the function {token.text} reaches outside the database", field=FIELD)
    return sql


def tokenize(sql: str) -> Iterator[Token]:
    """Tokens without space and comments. Raises Rejected for what this reader does not understand."""
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise Rejected(
                f"cannot read the query at {sql[at : at + 20]!r}",
                field=FIELD,
                hint="an open quote or comment, or a character that only belongs into a string",
            )
        at = match.end()
        if match.lastgroup and match.lastgroup != "space":
            yield Token(match.lastgroup, match[0], match.start())


def bound(sql: str, given: Mapping[str, str]) -> dict[str, str]:
    """Declared type of each parameter `{name:Type}`. Raises Rejected if one is missing or unknown."""
    wanted = dict(_PLACEHOLDER.findall(sql))
    for name in given:
        if name not in wanted:
            guess = nearest(name, wanted)
            known = ", ".join(f"{key}:{kind}" for key, kind in wanted.items()) or "none"
            hint = f"did you mean {guess!r}?" if guess else f"the query has: {known}"
            raise Rejected("the query has no such parameter", field=f"parameters.{name}", hint=hint)
    for name, kind in wanted.items():
        if name not in given:
            raise Rejected(f"a value of type {kind} is needed", field=f"parameters.{name}")
    return wanted


def _check_statement(tokens: list[Token]) -> None:
    if any(token.kind == "end" for token in tokens):
        raise Rejected("one statement at a time", field=FIELD)
    opening = next((token for token in tokens if token.text != "("), tokens[0])
    if opening.text.upper() not in FIRST_WORDS:
        raise Rejected(
            f"only questions are allowed, this begins with {opening.text!r}",
            field=FIELD,
            hint=f"begin with {', '.join(FIRST_WORDS)}",
        )


def _reaches_out(token: Token) -> bool:
    plain = token.text.strip('`"')
    return plain.lower() in OUTSIDE or OUTSIDE_PREFIX.match(plain) is not None
