"""`python -m temper.qa`: parse the configuration first, import the service only then."""

import sys

from temper.qa.config import QaConfig
from temper.runtime.service import Context, run_service


async def _build(context: Context[QaConfig]) -> None:
    from temper.qa.build import build

    await build(context)


if __name__ == "__main__":
    sys.exit(run_service("qa", QaConfig, _build))
