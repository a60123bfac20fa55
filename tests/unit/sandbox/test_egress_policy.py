import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.egress import head as heads
from temper.sandbox.egress.policy import Mode, Policy, Rule, checked, decide, normal, reachable
from temper.sandbox.egress.secrets import Secret, require_known

LIST = Policy(
    Mode.ALLOW, (Rule("pypi.org"), Rule("*.example.com", (443, 8443)), Rule("93.184.216.34", (80,)))
)


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("pypi.org", 443, True),
        ("PyPI.org.", 80, True),
        ("pypi.org", 22, False),
        ("pypi.org.evil.com", 443, False),
        ("notpypi.org", 443, False),
        ("files.pypi.org", 443, False),
        ("a.example.com", 443, True),
        ("a.b.example.com", 8443, True),
        ("example.com", 443, False),
        ("evilexample.com", 443, False),
        ("93.184.216.34", 80, True),
        ("93.184.216.35", 80, False),
        ("pypi.org@evil.com", 443, False),
        ("pypi.org\x00.evil.com", 443, False),
        ("pypi.org\r\n", 443, False),
        ("p\u0443pi.org", 443, False),
        ("", 443, False),
        ("a" * 300, 443, False),
        ("pypi.org", 0, False),
        ("pypi.org", 70000, False),
    ],
)
def test_a_name_is_allowed_by_its_rule_alone(host: str, port: int, allowed: bool) -> None:
    assert decide(LIST, host, port).allowed is allowed
    assert not decide(Policy(), host, port).allowed


def test_open_allows_names_and_nothing_malformed() -> None:
    policy = Policy(Mode.OPEN)
    assert decide(policy, "anything.example", 8080).allowed
    assert decide(policy, "a b", 80).reason == "malformed"


@given(st.text(max_size=40), st.integers(-5, 70000))
def test_any_name_gets_an_answer(host: str, port: int) -> None:
    assert decide(LIST, host, port).reason in {"", "not_allowed", "malformed"}
    name = normal(host)
    assert name is None or normal(name) == name


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "192.0.2.1",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "nonsense",
    ],
)
def test_an_address_inside_is_never_reached(address: str) -> None:
    assert not reachable(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946"])
def test_a_public_address_is_reached(address: str) -> None:
    assert reachable(address)


def test_an_internal_network_is_reached_only_when_the_operator_named_it() -> None:
    internal = (ipaddress.ip_network("10.1.0.0/16"),)
    assert reachable("10.1.2.3", internal)
    assert reachable("::ffff:10.1.2.3", internal)
    assert not reachable("10.2.0.1", internal)


@given(st.ip_addresses())
def test_what_is_reached_is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if reachable(str(address)):
        assert address.is_global
        assert not address.is_multicast


def test_an_open_network_needs_the_projects_word() -> None:
    with pytest.raises(Rejected, match="not approved"):
        checked("open", (), open_approved=False)
    assert checked("open", (), open_approved=True).mode is Mode.OPEN
    assert checked("", (), open_approved=False).mode is Mode.NONE


@pytest.mark.parametrize(
    "host", ["*", "*.com", "a b", "http://x.com", "x.com/path", "x.com:80", "*.*.com", ""]
)
def test_a_rule_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(Rejected, match=r"egress\.rules\[0\]"):
        checked("allow", (Rule(host),), open_approved=False)
    with pytest.raises(Rejected):
        checked("closed", (), open_approved=True)


def test_a_rule_that_covers_too_much_or_has_no_port_is_told_how_it_should_be() -> None:
    with pytest.raises(Rejected, match=r"rules\[0\]\.host: '\*\.com' covers too much.*\*\.example\.com"):
        checked("allow", [Rule("*.com")], open_approved=False)
    with pytest.raises(Rejected, match=r"ports: 0, 70000: no port \(1 to 65535\)"):
        checked("allow", [Rule("x", (0, 80, 70000))], open_approved=False)


def test_a_secret_goes_only_where_the_operator_said(tmp_path: Path) -> None:
    secrets = {"api": Secret("Authorization", tmp_path / "s", ("api.example.com", "*.internal.example"))}
    for host in ("api.example.com", "*.internal.example", "a.internal.example", "*.a.internal.example"):
        require_known(Policy(Mode.ALLOW, (Rule(host, secret="api"),)), secrets)
    for host in ("evil.com", "*.example.com", "example.com", "internal.example"):
        with pytest.raises(Rejected, match="not for"):
            require_known(Policy(Mode.ALLOW, (Rule(host, secret="api"),)), secrets)
    with pytest.raises(Rejected, match="no secret 'other'"):
        require_known(Policy(Mode.ALLOW, (Rule("api.example.com", secret="other"),)), secrets)


def test_a_secret_is_read_when_it_is_used_and_is_one_line(tmp_path: Path) -> None:
    secret = Secret("Authorization", tmp_path / "s", ("a.com",), "Bearer ")
    with pytest.raises(Unavailable):
        secret.value()
    (tmp_path / "s").write_text("k1\n")
    assert secret.value() == b"Bearer k1"
    (tmp_path / "s").write_text("k2\nX-Evil: 1")
    with pytest.raises(Unavailable):
        secret.value()


def request(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


def test_a_request_is_rewritten_for_its_server() -> None:
    raw = request(
        b"GET http://PyPI.org:8080/simple/?q=1#x HTTP/1.1",
        b"Host: evil.com",
        b"Proxy-Authorization: x",
        b"Connection: keep-alive, X-Private",
        b"X-Private: 1",
        b"Authorization: mine",
        b"Accept: */*",
    )
    head = heads.read(raw)
    assert (head.host, head.port, head.path, head.tls) == ("pypi.org", 8080, b"/simple/?q=1", False)
    assert head.forward((b"authorization", b"theirs")) == request(
        b"GET /simple/?q=1 HTTP/1.1",
        b"Host: pypi.org:8080",
        b"Accept: */*",
        b"authorization: theirs",
        b"Connection: close",
    )


def test_a_tunnel_and_a_base_url_are_read() -> None:
    tunnel = heads.read(request(b"CONNECT pypi.org:443 HTTP/1.1"))
    assert (tunnel.tunnel, tunnel.host, tunnel.port) == (True, "pypi.org", 443)
    base = heads.read(request(b"POST /tls/api.example.com/v1/chat HTTP/1.1", b"Content-Length: 2"))
    assert (base.tls, base.host, base.port, base.path) == (True, "api.example.com", 443, b"/v1/chat")
    assert base.length == 2


@pytest.mark.parametrize(
    "lines",
    [
        (b"GET / HTTP/1.1",),
        (b"GET https://x.com/ HTTP/1.1",),
        (b"GET ftp://x.com/ HTTP/1.1",),
        (b"GET http://u:p@x.com/ HTTP/1.1",),
        (b"GET http://x.com:99999/ HTTP/1.1",),
        (b"GET http:///x HTTP/1.1",),
        (b"GET  http://x.com/ HTTP/1.1",),
        (b"GET http://x.com/ HTTP/2",),
        (b"CONNECT x.com HTTP/1.1",),
        (b"CONNECT x.com:443/a HTTP/1.1",),
        (b"CONNECT a@x.com:443 HTTP/1.1",),
        (b"GET http://x.com/ HTTP/1.1", b" folded: 1"),
        (b"GET http://x.com/ HTTP/1.1", b"Name : 1"),
        (b"GET http://x.com/ HTTP/1.1", b"A: 1\nHost: evil"),
        (b"GET http://x.com/ HTTP/1.1", b"A: 1\rB: 2"),
        (b"POST http://x.com/ HTTP/1.1", b"Content-Length: 1", b"Content-Length: 2"),
        (b"POST http://x.com/ HTTP/1.1", b"Content-Length: +1"),
        (b"POST http://x.com/ HTTP/1.1", b"Content-Length: 1", b"Transfer-Encoding: chunked"),
        (b"POST http://x.com/ HTTP/1.1", b"Transfer-Encoding: gzip, chunked"),
        (b"POST http://x.com/ HTTP/1.1", b"Transfer-Encoding: xchunked"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(heads.BadRequest):
        heads.read(request(*lines))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    for data in (raw + b"\r\n\r\n", b"GET http://x.com/" + raw + b" HTTP/1.1\r\n\r\n"):
        try:
            head = heads.read(data)
        except heads.BadRequest:
            continue
        assert b"\r\n\r\n" not in head.forward(None)[:-4]


@given(st.binary(max_size=200))
def test_any_bytes_have_a_server_name_or_none(raw: bytes) -> None:
    for data in (raw, b"\x16\x03\x01\x00\xff\x01" + raw):
        name = heads.server_name(data)
        assert name is None or isinstance(name, str)
