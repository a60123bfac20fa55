"""Shared by the tests of the HTTP front."""

from pathlib import Path

import pytest
from tests.unit.rollout.serving.world import write_byte_directory, write_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "models" / "tiny")


@pytest.fixture
def byte_directory(tmp_path: Path) -> Path:
    return write_byte_directory(tmp_path / "models" / "byte")
