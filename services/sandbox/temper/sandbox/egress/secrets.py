"""Secrets that are put into requests on their way out. They stay in this process; a sandbox never sees one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.egress.policy import Policy, Rule


@dataclass(frozen=True, slots=True)
class Secret:
    """A header for some names. Example: `Secret("Authorization", Path("/run/secrets/api"), ("api.example.com",), "Bearer ")`."""

    header: str
    """Header that carries it; what a sandbox sends under this name is dropped."""
    file: Path
    """Holds the value; read for each request, so it can be rotated."""
    hosts: tuple[str, ...]
    """Names that may get it, as in a rule: a policy cannot send it elsewhere."""
    prefix: str = field(default="")
    """Put before the value, e.g. "Bearer "."""

    def value(self) -> bytes:
        """The header's value. Raises Unavailable."""
        try:
            text = self.file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"cannot read the secret for {self.header}") from error
        if "\n" in text or "\r" in text:
            raise Unavailable(f"the secret for {self.header} has more than one line")
        return (self.prefix + text).encode("ascii")


def require_known(policy: Policy, secrets: Mapping[str, Secret]) -> None:
    """Refuse a policy whose rules name a secret that is not there, or not for that name. Raises Rejected."""
    for index, rule in enumerate(policy.rules):
        if not rule.secret:
            continue
        where = f"egress.rules[{index}].secret"
        if rule.secret not in secrets:
            known = ", ".join(sorted(secrets)) or "none"
            raise Rejected(f"no secret {rule.secret!r}", field=where, hint=f"this host has: {known}")
        if not any(_within(rule, host) for host in secrets[rule.secret].hosts):
            raise Rejected(f"secret {rule.secret!r} is not for {rule.host!r}", field=where)


def _within(rule: Rule, host: str) -> bool:
    """Whether all that a rule covers lies within a name that the operator gave."""
    if host == rule.host:
        return True
    return host.startswith("*.") and rule.host.removeprefix("*").endswith(host[1:])
