"""Single files of a container whose trees are not open on this host, by scripts inside it.

The scripts run as the sandbox's own user, so a path that the agent swaps for a link meanwhile leads nowhere that it could
not go itself; links are refused all the same, as in every backend.
"""

from typing import Final

from temper.runtime.errors import Exhausted, Rejected, Unavailable
from temper.sandbox.engine.container.programs import script
from temper.sandbox.engine.container.seam import Container

ROOTS: Final = ("work", "tmp")

_WALK: Final = """
cd -- "/$1" || exit 30; shift
while [ $# -gt %d ]; do
  [ -L "$1" ] && exit 31
  %s
  cd -- "./$1" 2>/dev/null || exit 31; shift
done
"""
_PUT: Final = _WALK % (
    2,
    '[ -d "./$1" ] || mkdir -- "./$1" 2>/dev/null || { [ -e "./$1" ] && exit 31; exit 32; }',
) + (
    '[ -L "./$1" ] && exit 31; [ -d "./$1" ] && exit 33; [ -e "./$1" ] && [ ! -f "./$1" ] && exit 33\n'
    'cat > "./$1" || exit 32; chmod -- "$2" "./$1" || exit 32\n'
)
_GET: Final = _WALK % (2, '[ -e "./$1" ] || exit 34') + (
    '[ -L "./$1" ] && exit 31; [ -e "./$1" ] || exit 34; [ -f "./$1" ] || exit 33; [ -r "./$1" ] || exit 35\n'
    'head -c "$2" "./$1"\n'
)
_REFUSALS: Final = {
    30: "no such file or directory",
    31: "goes through a link or a file",
    33: "is not a regular file",
    34: "no such file or directory",
    35: "permission denied",
}


async def put(container: Container, path: str, content: bytes, mode: int) -> None:
    """Write a file with its directories. Raises Rejected, Exhausted, Unavailable."""
    words = [*_parts(path), f"{mode & 0o777:o}"]
    text = _PUT if content else _PUT.replace("cat >", ": >")
    status, _, said = await script(container, text, *words, stdin=content)
    if status == 32 and b"space" in said:
        raise Exhausted(f"the sandbox's disk is full writing {path!r}", field="path")
    _require(path, status, said)


async def get(container: Container, path: str, max_bytes: int) -> tuple[bytes, bool]:
    """The first bytes of a regular file, and whether there are more. Raises Rejected, Unavailable."""
    status, content, said = await script(container, _GET, *_parts(path), str(max_bytes + 1))
    _require(path, status, said)
    return content[:max_bytes], len(content) > max_bytes


def _require(path: str, status: int, said: bytes) -> None:
    if status in _REFUSALS:
        raise Rejected(f"{path!r}: {_REFUSALS[status]}", field="path")
    if status != 0:
        raise Unavailable(
            f"cannot reach {path!r}: {said.decode(errors='replace')[:200].strip()}", field="path"
        )


def _parts(path: str) -> list[str]:
    """Root and components. Raises Rejected for a path out of the writable trees."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts or "\0" in path:
        raise Rejected(f"{path!r} leaves the sandbox", field="path", hint="name it without '..'")
    if not path.startswith("/"):
        parts.insert(0, ROOTS[0])
    if len(parts) < 2 or parts[0] not in ROOTS:
        raise Rejected(f"{path!r} is not a file below a writable directory", field="path", hint="/work, /tmp")
    return parts
