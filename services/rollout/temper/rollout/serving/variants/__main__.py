"""``python -m temper.rollout.serving.variants admit|list``: what ``temper variant`` runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from temper.rollout.serving.command import fail, settings
from temper.rollout.serving.config import ServingSettings
from temper.runtime.errors import Rejected, TemperError

OK, REFUSED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when admitted, 1 when refused, 2 or 3 for a mistake or a part that is missing."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.verb == "list":
            return _list(arguments.records)
        return asyncio.run(_admit(settings(arguments.config, arguments.set), arguments))
    except TemperError as error:
        return fail(error)


def _list(directory: Path) -> int:
    from temper.rollout.serving.variants.record import Records

    for path, record in Records(directory).all():
        line = {
            "file": str(path),
            "standard": record.standard,
            "fast": record.fast,
            "admitted_at": record.admitted_at,
            "evidence": record.evidence,
        }
        print(json.dumps(line))  # noqa: T201 - a command's output
    return OK


async def _admit(config: ServingSettings, arguments: argparse.Namespace) -> int:
    from temper.rollout.engine.choose import make_engine
    from temper.rollout.serving.directory import read_model
    from temper.rollout.serving.start import fast_engine_config
    from temper.rollout.serving.variants.admit import Admission, Side, Trial
    from temper.rollout.serving.variants.record import Records, variant_digest
    from temper.runtime.clock import SystemClock

    fast = config.serving.fast
    if fast.model is None and not fast.engine:
        raise Rejected(
            "nothing tells the fast variant from the standard one",
            field="serving.fast",
            hint="give --set serving.fast.engine={...} or --set serving.fast.model=DIR",
        )
    clock = SystemClock()
    standard_model = read_model(arguments.model)
    fast_model = read_model(fast.model) if fast.model is not None else standard_model
    sides: list[Side] = []
    try:
        for model, engine_config in (
            (standard_model, config.engine),
            (fast_model, fast_engine_config(config)),
        ):
            engine = make_engine(engine_config, clock)
            speculates = engine_config.speculation != "none"
            sides.append(Side(model, engine, variant_digest(model, engine_config), speculates))
            await engine.start()
            await engine.load(model.files(0))
            await engine.swap(0)
        trial = Trial(arguments.corpus, arguments.golden, arguments.seeds, arguments.temperature)
        record, wrong = await Admission(sides[0], sides[1], clock).decide(trial)
    finally:
        for side in sides:
            await side.engine.close()
    told: dict[str, object] = {"admitted": not wrong, "refused_because": wrong, "evidence": record.evidence}
    if not wrong:
        told["record"] = str(Records(arguments.records).write(record))
    print(json.dumps(told, indent=2))  # noqa: T201 - a command's output
    return REFUSED if wrong else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="temper variant", description="Admission of fast variants.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    admit = verbs.add_parser(
        "admit", help="compare a fast variant with the standard one and admit or refuse it"
    )
    admit.add_argument(
        "--model", type=Path, required=True, help="Hugging Face directory of the standard variant"
    )
    admit.add_argument("--corpus", type=Path, required=True, help="texts, one per line")
    admit.add_argument("--golden", type=Path, required=True, help="tasks, one JSON object per line")
    admit.add_argument("--seeds", type=int, default=4, help="outputs per task")
    admit.add_argument("--temperature", type=float, default=1.0, help="of the tasks' outputs")
    admit.add_argument("--config", type=Path, help="TOML file on top of the defaults")
    admit.add_argument("--set", action="append", default=[], help="one setting: serving.fast.engine={...}")
    listing = verbs.add_parser("list", help="records of a directory")
    for verb in (admit, listing):
        verb.add_argument("--records", type=Path, required=True, help="directory of admission records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
