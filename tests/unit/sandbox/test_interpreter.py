from typing import Any

import pytest

from temper.sandbox.engine.guest import interpreter


def run(code: str, namespace: dict[str, Any] | None = None) -> str | None:
    return interpreter.run(code, {} if namespace is None else namespace)


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("1 + 1", "2\n"),
        ("x = 1", ""),
        ("None", ""),
        ("'a'", "'a'\n"),
        ("print('a'); 2", "a\n2\n"),
        ("for i in range(2):\n    i", ""),
        ("", ""),
        ("# nothing", ""),
        ("def f():\n    return 3\nf()", "3\n"),
    ],
)
def test_only_a_trailing_expression_is_shown(
    code: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(code) is None
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero (line 1)"),
        ("\n\nundefined", "NameError: name 'undefined' is not defined (line 3)"),
        ("raise SystemExit(2)", "SystemExit: 2 (line 1)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
        (
            "def f():\n    return g()\ndef g():\n    return [][1]\nf()",
            "IndexError: list index out of range (line 4)",
        ),
        ("x = (", "SyntaxError: '(' was never closed (line 1)"),
    ],
)
def test_an_error_is_one_line_with_the_place(code: str, error: str) -> None:
    assert run(code) == error


def test_a_failing_repr_is_an_error_too() -> None:
    assert run("class A:\n    def __repr__(self):\n        return 1\nA()") is not None


def test_a_very_long_error_keeps_its_beginning() -> None:
    error = run("raise ValueError('x' * 100000)")
    assert error is not None
    assert len(error) < 2100


def test_the_last_value_is_kept_as_underscore() -> None:
    namespace: dict[str, Any] = {}
    run("41", namespace)
    run("_ + 1", namespace)
    assert namespace["_"] == 42


def test_streams_replaced_by_the_code_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", object())
    interpreter.flush()
