"""Which names a sandbox may reach. Pure: no I/O, no clock.

A name is decided before it is looked up, so no question about a name that is not allowed leaves the host; and each address
that it has is decided again afterwards, so an allowed name cannot be made to lead inside.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from temper.runtime.errors import Rejected

WEB_PORTS: Final = (80, 443)

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_MAX_NAME: Final = 253

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Prefixes that carry an IPv4 address which a translator or tunnel may deliver to. Source: RFC 6052, 8215, 3056, 4380.
_CARRIERS: Final = tuple(
    ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)


class Mode(StrEnum):
    """How much is allowed."""

    NONE = "none"
    ALLOW = "allow"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Rule:
    """One allowed name. Example: `Rule("*.example.com", (443,))`."""

    host: str
    """"pypi.org", or "*.example.com" for every name below it."""
    ports: tuple[int, ...] = WEB_PORTS
    """Ports."""
    secret: str = ""
    """Name of the secret that is put into requests; the sandbox never sees it."""
    approve: bool = False
    """A person must say yes to each name and port first."""

    def covers(self, host: str, port: int) -> bool:
        """Whether this rule is about a (normal) name and port."""
        if port not in self.ports:
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
        return host == self.host


@dataclass(frozen=True, slots=True)
class Policy:
    """What one session may reach. Example: `Policy(Mode.ALLOW, (Rule("pypi.org"),), version=1)`."""

    mode: Mode = Mode.NONE
    """How much."""
    rules: tuple[Rule, ...] = ()
    """With ALLOW: what is allowed. With OPEN: names that get a secret or need a person's word."""
    version: int = 1
    """Grows by one with every change."""


NOTHING: Final = Policy()
"""What a session may reach unless it asks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer. Example: `Decision(False, "not_allowed")`."""

    allowed: bool
    """Whether the name may be looked up."""
    reason: str = ""
    """Why not: "not_allowed" or "malformed"."""
    rule: Rule | None = None
    """The rule that covers it, if one does."""


def decide(policy: Policy, host: str, port: int) -> Decision:
    """Whether a session may connect to a name. The first rule that covers it counts."""
    name = normal(host)
    if name is None or not 0 < port < 65536:
        return Decision(False, "malformed")
    if policy.mode is Mode.NONE:
        return Decision(False, "not_allowed")
    rule = next((each for each in policy.rules if each.covers(name, port)), None)
    if rule is None and policy.mode is not Mode.OPEN:
        return Decision(False, "not_allowed")
    return Decision(True, rule=rule)


def normal(host: str) -> str | None:
    """A name in its one spelling, or an address in its own; None for what is neither."""
    text = host.strip("[]") if host.startswith("[") and host.endswith("]") else host
    try:
        return ipaddress.ip_address(text).compressed
    except ValueError:
        pass
    name = host.lower().removesuffix(".")
    if not name or len(name) > _MAX_NAME or not all(_LABEL.fullmatch(part) for part in name.split(".")):
        return None
    return name


def reachable(address: str, internal: Iterable[Network] = ()) -> bool:
    """Whether a resolved address may be connected to: a public one, or one in a network that the operator named.

    Not public: private, loopback, link-local (cloud metadata among them), multicast, reserved, and IPv6 forms that carry
    an IPv4 address.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = _unmapped(found)
    if any(plain in network for network in internal if network.version == plain.version):
        return True
    if isinstance(plain, ipaddress.IPv6Address) and any(plain in carrier for carrier in _CARRIERS):
        return False
    return plain.is_global and not plain.is_multicast and not plain.is_reserved and not plain.is_unspecified


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def checked(mode: str, rules: Sequence[Rule], *, open_approved: bool, version: int = 1) -> Policy:
    """A policy as somebody asked for it. Raises Rejected for a rule that is none, and for an "open" nobody approved."""
    try:
        wanted = Mode(mode or "none")
    except ValueError:
        raise Rejected(f"unknown mode {mode!r}", field="egress.mode", hint="none, allow or open") from None
    if wanted is Mode.OPEN and not open_approved:
        raise Rejected(
            "an open network is not approved here",
            field="egress.mode",
            hint="name the hosts with mode allow, or set egress.allow_open = true on the host",
        )
    return Policy(wanted, tuple(_checked_rule(rule, index) for index, rule in enumerate(rules)), version)


def _checked_rule(rule: Rule, index: int) -> Rule:
    below = rule.host.startswith("*.")
    name = normal(rule.host[2:] if below else rule.host)
    if name is not None and below and "." not in name:
        raise Rejected(
            f"{rule.host!r} covers too much",
            field=f"egress.rules[{index}].host",
            hint="at least two parts after the star, as in *.example.com",
        )
    if name is None:
        raise Rejected(
            f"{rule.host!r} is no name",
            field=f"egress.rules[{index}].host",
            hint="pypi.org or *.example.com",
        )
    ports = rule.ports or WEB_PORTS
    if not all(0 < port < 65536 for port in ports):
        bad = ", ".join(str(port) for port in ports if not 0 < port < 65536)
        raise Rejected(f"{bad}: no port", field=f"egress.rules[{index}].ports", hint="1 to 65535")
    return Rule(f"*.{name}" if below else name, tuple(ports), rule.secret, rule.approve)
