"""What runs in a container, asked of the /proc that its programs see."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from temper.runtime.errors import Rejected, Unavailable
from temper.sandbox.engine.container.programs import script
from temper.sandbox.engine.container.seam import Container
from temper.sandbox.engine.guest.keeper import MARKS
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
  while read -r k v; do [ "$k" = Groups: ] && printf '+%s\\n' "$v"; done 2>/dev/null < "$d/status"
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
# Owners and parents from `status`, where a name cannot look like a number; what cannot be read has gone. The first process's own
# `sleep`, where it has one, has the agent's user in some containers: it is ended too, not waited for.
SPARE: Final = """
of() { name= state= parent= owner= groups=
  while read -r k v w; do case "$k" in
    Name:) name=$v ;; State:) state=$v ;; PPid:) parent=$v ;; Uid:) owner=$v ;; Groups:) groups=$v; return 0 ;;
  esac; done 2>/dev/null < "/proc/$1/status"; [ "$owner" ]; }
marks=
for p in $2; do of "$p" && [ "${groups:-0}" -ge "$3" ] && marks="$marks $groups"; done
of $$ || exit 1; me=$owner; n=0
while [ $n -lt 500 ]; do
  left= also=
  for d in /proc/[0-9]*; do
    p=${d#/proc/}; [ "$p" = 1 ] || [ "$p" = $$ ] && continue
    of "$p" && [ "$owner" = "$me" ] && [ "$state" != Z ] || continue
    case " $marks " in *" ${groups:-none} "*) continue ;; esac
    q=$p first=$name:$parent
    while [ "$q" -gt 1 ]; do
      case " $2 " in *" $q "*) continue 2 ;; esac
      of "$q" || break
      q=$parent
    done
    if [ "$first" = sleep:1 ]; then also="$also $p"; else left="$left $p"; fi
  done
  [ "$1" = 9 ] || { kill "-$1" $left $also 2>/dev/null; exit 0; }
  kill -STOP $left $also 2>/dev/null; kill -KILL $left $also 2>/dev/null
  [ "$left" ] || exit 0
  n=$((n + 1))
done
exit 1
"""
"""As `SWEEP`, but for the processes in $2, all below them and all with their group from $3 on: stopped first, so that none can fork away from the list."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What runs. Example: `Listed([ProcessInfo(7, 1, ("sleep", "60"), "S")], {7: 1 << 30})`."""

    rows: list[ProcessInfo]
    """Processes in order of their pids."""
    marks: Mapping[int, int]
    """By pid, its highest group: from `MARKS` on it tells what one start of the container has started."""


async def listing(container: Container) -> Listed:
    """What runs in the container, ours included. Raises Unavailable."""
    _, text, _ = await script(container, _LIST)
    lines = text.decode(errors="replace").split("\n")
    tick, page, uptime = (float(word) for word in lines[0].split())
    found: list[ProcessInfo] = []
    argv: dict[int, list[str]] = {}
    marks: dict[int, int] = {}
    for line in lines[1:]:
        if line.startswith("="):
            argv[found[-1].pid].append(line[1:])
        elif line.startswith("+"):
            groups = [int(group) for group in line[1:].split()]
            marks[found[-1].pid] = max(groups, default=0)
        elif line:
            found.append(_info(line.split(), tick, page, uptime))
            argv[found[-1].pid] = []
    named = [replace(each, argv=tuple(argv[each.pid])) for each in found]
    theirs = [each for each in named if each.parent != 1 or " ".join(each.argv) != _HELD]
    return Listed(sorted(theirs, key=lambda each: each.pid), marks)


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


def of_sessions(found: Listed, keepers: Mapping[int, str]) -> list[ProcessInfo]:
    """The agent's among them, each with the session whose keeper it is below or marked by."""
    parents = {each.pid: each.parent for each in found.rows}
    marked = {mark: name for pid, name in keepers.items() if (mark := found.marks.get(pid, 0)) >= MARKS}

    def session(pid: int) -> str:
        mark = found.marks.get(pid, 0)
        for _ in range(len(parents)):
            if pid in keepers or pid not in parents:
                break
            pid = parents[pid]
        return marked.get(mark, "") if mark >= MARKS else keepers.get(pid, "")

    return [replace(each, session=session(each.pid)) for each in found.rows if each.pid not in keepers]


async def sweep(container: Container, number: int, spared: frozenset[int] = frozenset()) -> None:
    """Signal every process of the agent but `spared` and what is below them. Raises Unavailable if one would not die."""
    words = [str(number), " ".join(str(pid) for pid in spared), str(MARKS)]
    status, _, _ = await script(container, SPARE if spared else SWEEP, *words)
    if status != 0:
        raise Unavailable("processes of the container would not die")


async def send(container: Container, pid: int, number: int, ours: Collection[int]) -> None:
    """Signal one process that is none of `ours`. Raises Rejected if it is not there, Unavailable."""
    if pid <= 1 or pid in ours:
        raise Rejected(f"no process {pid}", field="pid", hint="list the processes")
    status, _, _ = await script(container, 'kill "-$1" "$2" 2>/dev/null', str(number), str(pid))
    if status != 0:
        raise Rejected(f"no process {pid}", field="pid", hint="list the processes")
