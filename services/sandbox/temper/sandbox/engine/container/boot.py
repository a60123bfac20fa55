"""Programs of ours in a container: their code travels with the start, so an image needs a Python (3.10 or later) and nothing of ours.

The first bytes of the program's standard input are the sources, then whatever the program itself takes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temper.sandbox.engine import guest
from temper.sandbox.engine.container.seam import Container, Program

_PACKAGE: Final = "temper.sandbox.engine.guest"
_BOOT: Final = f"""
import json, os, sys, types
def take(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data
sources = json.loads(take(int(take(12))))
parent = None
for part in {_PACKAGE!r}.split("."):
    name = parent.__name__ + "." + part if parent else part
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent = module
for part, text in sources.items():
    module = sys.modules[parent.__name__ + "." + part] = types.ModuleType(parent.__name__ + "." + part)
    setattr(parent, part, module)
    exec(compile(text, part, "exec"), module.__dict__)
module.main()
"""


async def start(container: Container, *options: str) -> Program:
    """Start a Python that waits for `sources`. Raises Unavailable."""
    words = [*container.python, *options, "-c", _BOOT]
    return await container.start(words, container.environment, stdin=True)


def sources(modules: Sequence[str]) -> bytes:
    """Modules of `guest`, each after those it imports; `main` of the last one is what runs."""
    directory = Path(guest.__file__).parent
    text = json.dumps({name: (directory / f"{name}.py").read_text() for name in modules}).encode()
    return b"%012d" % len(text) + text
