"""Which task of a domain comes next: one class per rule, all seeded, all resumable.

| name              | rule                                                                                        |
| ----------------- | ------------------------------------------------------------------------------------------- |
| `uniform`         | each epoch is another permutation of the tasks                                              |
| `success_window`  | tasks whose estimated success lies in [0.2, 0.8]                                            |
| `difficulty_pool` | pools of hard (up to 0.25), middling (0.75), easy and unseen tasks, weights .2, 1, .2, 1    |
| `balanced_online` | in proportion to ``p(1-p)``                                                                 |
| `bandit`          | a Boltzmann bandit over bins of difficulty, rewarded by what groups from there teach        |
| `adaptive_target` | tasks nearest to a difficulty that rises while more than half is solved                     |
| `gate`            | quarters of the tasks by number, opened one after the other as the last one is mastered     |

All but `uniform` and `gate` explore with a tenth of their draws, in the order of `uniform`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from temper.runtime.errors import Rejected
from temper.scheduler.curriculum.adaptive_target import AdaptiveTarget
from temper.scheduler.curriculum.balanced_online import BalancedOnline
from temper.scheduler.curriculum.bandit import Bandit
from temper.scheduler.curriculum.base import Curriculum
from temper.scheduler.curriculum.chance import fraction, permuted
from temper.scheduler.curriculum.difficulty_pool import DifficultyPool
from temper.scheduler.curriculum.gate import Gate
from temper.scheduler.curriculum.success_window import SuccessWindow
from temper.scheduler.curriculum.uniform import Uniform

__all__ = ["CURRICULA", "Curriculum", "fraction", "make", "permuted"]

_MAKERS: Mapping[str, Callable[[int, int, int], Curriculum]] = MappingProxyType(
    {
        "uniform": lambda seed, tasks, _: Uniform(seed, tasks),
        "success_window": SuccessWindow,
        "difficulty_pool": DifficultyPool,
        "balanced_online": BalancedOnline,
        "bandit": Bandit,
        "adaptive_target": AdaptiveTarget,
        "gate": lambda seed, tasks, _: Gate(seed, tasks),
    }
)
CURRICULA = tuple(_MAKERS)


def make(name: str, seed: int, tasks: int, capacity: int) -> Curriculum:
    """The curriculum called `name`; Rejected if there is none, or if it cannot work with that many tasks."""
    if name not in _MAKERS:
        raise Rejected(
            f"no curriculum named {name!r}", field="curriculum", hint=f"known: {', '.join(CURRICULA)}"
        )
    return _MAKERS[name](seed, tasks, capacity)
