"""Fixtures of the runtime (broker, memory platform, free port) for every test."""

from importlib.util import find_spec

pytest_plugins = ["temper.runtime.testing"] if find_spec("temper.runtime.testing") else []
