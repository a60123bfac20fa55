"""What a sandbox may reach: a policy by name (pure), and the one proxy that a sandbox without a network can talk to."""

from temper.sandbox.egress.policy import Decision, Mode, Policy, Rule
from temper.sandbox.egress.proxy import Proxy, Refusal, Settings
from temper.sandbox.egress.secrets import Secret

__all__ = ["Decision", "Mode", "Policy", "Proxy", "Refusal", "Rule", "Secret", "Settings"]
