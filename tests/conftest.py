"""Fixtures of the runtime (broker, memory platform, free port) for every test; property tests that judge no machine's speed."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["temper.runtime.testing"]

settings.register_profile("temper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("temper")
