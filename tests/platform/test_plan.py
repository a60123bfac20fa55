"""What the client may ask the planner for is what the planner knows."""

import inspect
from typing import get_args

from temper.client.cli.plan import plan
from temper.trainer.planner.__main__ import parser
from temper.trainer.planner.machine import MACHINES


def choices(option):
    """Values of an option of `temper plan`."""
    annotated = inspect.signature(plan, eval_str=True).parameters[option].annotation
    return set(get_args(get_args(annotated)[0]))


def test_machines_engines_and_formats_are_the_planners():
    theirs = {action.dest: action.choices for action in parser()._actions if action.choices}
    assert choices("machine") == set(MACHINES) == set(theirs["machine"])
    assert choices("engine") == set(theirs["engine"])
    assert choices("output") == set(theirs["output"])
