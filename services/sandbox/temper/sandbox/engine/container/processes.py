"""What runs in a container, asked of the /proc that its programs see."""

from dataclasses import replace
from typing import Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.container.programs import script
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.interactive import ProcessInfo

_HELD: Final = "sleep 2147483647"
HOLD: Final = f"cd /; while :; do {_HELD} & wait $!; done"
"""What a first process does where the container brings no init: a shell that waits collects every orphan that comes to it."""
# The script is a process itself: it leaves out its own pid and those of its children, and what is not the agent's.
_LIST: Final = """
tick=$(getconf CLK_TCK 2>/dev/null || echo 100); page=$(getconf PAGESIZE 2>/dev/null || echo 4096)
read up rest < /proc/uptime; printf '%s %s %s\\n' "$tick" "$page" "$up"
for d in /proc/[0-9]*; do
  [ -O "$d" ] || continue
  p=${d#/proc/}; [ "$p" = 1 ] || [ "$p" = $$ ] && continue
  s=$(cat "$d/stat" 2>/dev/null) || continue
  r=${s##*) }; set -- $r; [ "$2" = $$ ] && continue
  printf '%s %s\\n' "$p" "$r"
  tr '\\n\\000' ' \\n' < "$d/cmdline" 2>/dev/null | sed 's/^/=/'
done
"""
SWEEP: Final = """
kill "-$1" -1 2>/dev/null
[ "$1" = 9 ] || exit 0
n=0; while [ $n -lt 500 ]; do
  left=; for d in /proc/[0-9]*; do
    [ -O "$d" ] || continue
    p=${d#/proc/}; [ "$p" = 1 ] || [ "$p" = $$ ] && continue
    read -r w < "$d/stat" 2>/dev/null || continue
    case "$w" in *") Z "*|"$p (sleep) "*" 1 "*) ;; *) left=$p ;; esac
  done
  [ "$left" ] || exit 0
  n=$((n + 1)); sleep 0.01
done
exit 1
"""
"""Everything that this user may signal: all but process 1 and the script itself; after KILL, until it is gone. Source: kill(2)."""


async def listing(container: Container) -> list[ProcessInfo]:
    """Processes in order of their pids. Raises Unavailable."""
    _, text, _ = await script(container, _LIST)
    lines = text.decode(errors="replace").split("\n")
    tick, page, uptime = (float(word) for word in lines[0].split())
    found: list[ProcessInfo] = []
    argv: dict[int, list[str]] = {}
    for line in lines[1:]:
        if line.startswith("="):
            argv[found[-1].pid].append(line[1:])
        elif line:
            found.append(_info(line.split(), tick, page, uptime))
            argv[found[-1].pid] = []
    named = [replace(each, argv=tuple(argv[each.pid])) for each in found]
    theirs = [each for each in named if each.parent != 1 or " ".join(each.argv) != _HELD]
    return sorted(theirs, key=lambda each: each.pid)


def _info(words: list[str], tick: float, page: float, uptime: float) -> ProcessInfo:
    """Fields of proc_pid_stat(5): the first word is the pid, the second field 3."""
    return ProcessInfo(
        int(words[0]),
        int(words[2]),
        (),
        words[1],
        started_s=max(0.0, uptime - int(words[20]) / tick),
        cpu_s=(int(words[12]) + int(words[13])) / tick,
        memory_bytes=int(int(words[22]) * page),
    )


async def sweep(container: Container, number: int) -> None:
    """Signal every process of the agent. Raises Unavailable if one would not die."""
    status, _, _ = await script(container, SWEEP, str(number))
    if status != 0:
        raise Unavailable("processes of the container would not die")


async def send(container: Container, pid: int, number: int) -> None:
    """Signal one process. Raises Rejected if it is not there, Unavailable."""
    if pid <= 1:
        raise Rejected(f"no process {pid}", field="pid", hint="list the processes")
    status, _, _ = await script(container, 'kill "-$1" "$2" 2>/dev/null', str(number), str(pid))
    if status != 0:
        raise Rejected(f"no process {pid}", field="pid", hint="list the processes")
