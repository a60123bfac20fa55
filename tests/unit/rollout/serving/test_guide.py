"""The guide lists every setting with its default, and every route."""

import re
from pathlib import Path

from temper.rollout.serving.app import ROUTES
from temper.rollout.serving.config import ServingConfig
from temper.runtime.config import leaves

GUIDE = (Path(__file__).parents[4] / "docs/guides/serving.md").read_text()


def test_every_setting_is_in_the_guide_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", GUIDE, re.MULTILINE))
    assert rows == {key: "—" if value is None else f"`{value}`" for key, value in leaves(ServingConfig())}


def test_every_route_is_in_the_guide() -> None:
    for _, path, _, _ in ROUTES:
        known = path.removesuffix("/{name}")
        assert known in GUIDE or known.removeprefix("/v1/canary") in GUIDE, path
