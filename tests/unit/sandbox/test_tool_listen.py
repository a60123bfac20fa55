"""What `temper sandbox mcp --http` is asked for: each mistake names its option, says the way out, and makes nothing."""

import re
import socket
import string
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from temper.runtime.errors import Rejected
from temper.sandbox.mcp import main
from temper.sandbox.toollisten import HttpOptions, _address, listen, url


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("  s3cret\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "8765"], "--http: '8765' is not HOST:PORT"),
        (["--http", ":8765"], "is not HOST:PORT"),
        (["--http", "127.0.0.1:"], "is not HOST:PORT"),
        (["--http", "127.0.0.1:65536"], "is not HOST:PORT"),
        (["--http", "::1:8765"], "[::1]:8765"),
        (["--http", "http://127.0.0.1:8765"], "is not HOST:PORT"),
        (["--http", "no.such.name.invalid:0"], "--http: 'no.such.name.invalid' is no address"),
        (["--http", "a..b:0"], "--http: 'a..b' is no address"),
        (["--http", "192.0.2.1:0", "--token-file", "TOKEN"], "--http: cannot listen on 192.0.2.1:0"),
        (["--http", "0.0.0.0:0"], "--token-file: 0.0.0.0 can be reached from other machines"),
        (["--http", "[::]:0"], "listen on 127.0.0.1"),
        (["--http", "127.0.0.1:0", "--token-file", "/nowhere"], "--token-file: no such file: /nowhere"),
        (["--http", "127.0.0.1:0", "--token-file", "/"], "--token-file: cannot read /"),
        (["--http", "127.0.0.1:0", "--sessions", "0"], "--sessions: 0 is not within 1 and 256"),
        (["--http", "127.0.0.1:0", "--idle", "nan"], "--idle: nan is not within 1 and 86400 seconds"),
        (["--http", "127.0.0.1:0", "--idle", "1e9"], "--idle: 1e+09 is not within"),
        (["--token-file", "TOKEN"], "--token-file: has no effect on standard input and output (add --http)"),
        (["--sessions", "2"], "--sessions: has no effect"),
        (["--idle", "5"], "--idle: has no effect"),
    ],
)
def test_an_option_that_does_not_do_is_named_with_the_way_out(
    arguments: list[str], said: str, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(token_file) if each == "TOKEN" else each for each in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", "schlüssel".encode(), b"a\nb"])
def test_a_token_is_one_word_of_ascii(
    content: bytes, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_file.write_bytes(content)
    assert main(["--http", "127.0.0.1:0", "--token-file", str(token_file)]) == 2
    assert "--token-file" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_before_anything_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    with listen(HttpOptions("127.0.0.1", 0, None, 1, 1.0)) as taken:
        port = taken.getsockname()[1]
        assert url(taken) == f"http://127.0.0.1:{port}/mcp"
        assert main(["--http", f"127.0.0.1:{port}"]) == 2
    assert f"--http: cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_with_a_token_every_address_may_be_listened_on(token_file: Path) -> None:
    with listen(HttpOptions("0.0.0.0", 0, "s3cret", 1, 1.0)) as anywhere:
        assert anywhere.getsockname()[0] == "0.0.0.0"


def test_an_address_of_the_sixth_version_is_written_in_brackets() -> None:
    try:
        listening = listen(HttpOptions("::1", 0, None, 1, 1.0))
    except Rejected:
        pytest.skip("this machine has no ::1")
    with listening:
        assert url(listening).startswith("http://[::1]:")
        assert listening.family is socket.AF_INET6


@given(st.text(string.ascii_letters + string.digits + ".-", min_size=1), st.integers(0, 65535))
def test_every_name_and_port_is_read_as_it_was_written(host: str, port: int) -> None:
    assert _address(f"{host}:{port}") == (host, port)
    assert _address(f"[{host}]:{port}") == (host, port)


@given(st.text())
def test_any_other_text_is_refused_by_the_name_of_its_option(text: str) -> None:
    assume(re.fullmatch(r".+:[0-9]{1,5}", text) is None)
    with pytest.raises(Rejected) as refused:
        _address(text)
    assert refused.value.field == "--http"
