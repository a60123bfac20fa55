"""What a bare sandbox may reach, from short texts: `pypi.org`, `*.pythonhosted.org`, `api.example.com:8443=api`."""

from __future__ import annotations

from collections.abc import Sequence

from temper.api.sandbox.v1 import egress_pb2
from temper.runtime.errors import Rejected

_PORTS = range(1, 65536)


def policy(allow: Sequence[str] | str) -> egress_pb2.EgressPolicy | None:
    """A policy with a rule for each `HOST[:PORT][=SECRET]`; None for nothing, no network. Raises Rejected.

    Names are the sandbox host's to check; a secret is the name of one that its operator configured.
    """
    names = [allow] if isinstance(allow, str) else allow
    if not names:
        return None
    return egress_pb2.EgressPolicy(mode="allow", rules=[_rule(each) for each in names])


def _rule(text: str) -> egress_pb2.EgressRule:
    place, gives, secret = text.partition("=")
    host, colon, port = place.partition(":")
    known = port.isascii() and port.isdigit() and int(port) in _PORTS
    if not host or (colon and not known) or (gives and not secret):
        hint = "HOST[:PORT][=SECRET], such as pypi.org or api.example.com:8443=api"
        raise Rejected(f"{text!r} is no rule", field="allow", hint=hint)
    return egress_pb2.EgressRule(host=host, ports=[int(port)] if colon else [], secret=secret)
