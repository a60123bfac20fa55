"""Fixtures of the runtime (broker, memory platform, free port) for every test."""

pytest_plugins = ["temper.runtime.testing"]
