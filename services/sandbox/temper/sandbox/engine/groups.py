"""The control group of one slot, by kind: limits in, counters out. `cgroups` decides the kind and the place."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.base import Guarantee, Limits
from temper.sandbox.engine.verdict import Counters

_PERIOD_US: Final = 100_000
_FAIR_CORES: Final = 1.0  # what a sandbox without a promise weighs
_SHARES_OF_A_CORE: Final = 1024
_WEIGHT_OF_A_CORE: Final = 100
_MOST_WEIGHT: Final = 10_000

_UNBOUNDED: Final = {"cpu.cfs_quota_us": "-1", "cpu.max": f"max {_PERIOD_US}"}
"""Files of the bound on processor time, of either version, and what says there is none."""

_Applied = tuple[int, int, float, Guarantee]


def _sure_memory(promised: Guarantee) -> int:
    """Files of a sandbox lie in its memory, so what is promised of the disk is promised of that."""
    return promised.memory_bytes + promised.disk_bytes


class Group(Protocol):
    """The control group of one slot."""

    def apply(self, limits: Limits) -> None:
        """Set the limits of the next sandbox."""
        ...

    def join_descriptors(self) -> list[int]:
        """Files that a process writes "0" to, to join. They stay open here."""
        ...

    def counters(self) -> Counters:
        """The meters now."""
        ...

    def reset_peak(self) -> None:
        """Start a new high-water mark."""
        ...

    def unthrottled(self) -> contextlib.AbstractContextManager[None]:
        """No bound on processor time meanwhile, for those that are being killed.

        A killed process runs to its end on its group's time. One that the kernel searches for memory to reclaim can
        use all of that and more, and then the killed wait for seconds and hold what they have.
        """
        ...


class _Files:
    """Files of a group that are read or written again and again, kept open."""

    def __init__(self, paths: Mapping[str, Path], flags: int) -> None:
        self._descriptors: dict[str, int] = {}
        for name, path in paths.items():
            with contextlib.suppress(FileNotFoundError):  # an older kernel lacks some meters
                self._descriptors[name] = os.open(path, flags | os.O_CLOEXEC)

    def read(self, name: str) -> str:
        descriptor = self._descriptors.get(name)
        return os.pread(descriptor, 4096, 0).decode() if descriptor is not None else ""

    def number(self, name: str) -> int:
        text = self.read(name).strip()
        return int(text) if text.isdigit() else 0

    def field(self, name: str, key: str) -> int:
        for line in self.read(name).splitlines():
            label, _, value = line.partition(" ")
            if label == key:
                return int(value)
        return 0

    def write(self, name: str, text: str) -> None:
        if name in self._descriptors:
            with contextlib.suppress(
                OSError
            ):  # a high-water mark that cannot be reset stays a bound from above
                os.pwrite(self._descriptors[name], text.encode(), 0)

    def values(self) -> list[int]:
        return list(self._descriptors.values())

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class _Quota:
    """The bound on processor time of a group, which can be lifted for a while, also by several at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lifts = 0
        self._before = ""

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Nothing happens to a group that is gone."""
        self._lifts += 1
        if self._lifts == 1:
            with contextlib.suppress(OSError):
                self._before = self._path.read_text()
                self._path.write_text(_UNBOUNDED[self._path.name])
        try:
            yield
        finally:
            self._lifts -= 1
            if self._lifts == 0 and self._before:
                with contextlib.suppress(OSError):
                    self._path.write_text(self._before)


class GroupV1:
    """One directory in each hierarchy."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        for directory in directories.values():
            directory.mkdir(parents=True, exist_ok=True)
        self._directories = directories
        self._limits: _Applied | None = None
        self._quota = _Quota(directories["cpu"] / "cpu.cfs_quota_us")
        memory, pids = directories["memory"], directories["pids"]
        meters = {
            "peak": memory / "memory.max_usage_in_bytes",
            "oom": memory / "memory.oom_control",
            "forks": pids / "pids.events",
            "throttle": directories["cpu"] / "cpu.stat",
        }
        if "cpuacct" in directories:
            meters["cpu"] = directories["cpuacct"] / "cpuacct.usage"
        self._meters = _Files({name: path for name, path in meters.items() if name != "peak"}, os.O_RDONLY)
        self._peak = _Files({"peak": meters["peak"]}, os.O_RDWR)
        self._doors = _Files({name: path / "tasks" for name, path in directories.items()}, os.O_WRONLY)

    def apply(self, limits: Limits) -> None:
        """Set the limits of the next sandbox."""
        wanted = (limits.memory_bytes, limits.pids, limits.cpus, limits.guarantee)
        if wanted == self._limits:
            return
        self._set_memory(limits.memory_bytes)
        _write(self._directories["pids"] / "pids.max", limits.pids)
        _write(self._directories["cpu"] / "cpu.cfs_period_us", _PERIOD_US)
        _write(self._directories["cpu"] / "cpu.cfs_quota_us", int(limits.cpus * _PERIOD_US))
        promised = limits.guarantee
        _write_if_there(
            self._directories["memory"] / "memory.soft_limit_in_bytes", _sure_memory(promised) or -1
        )
        shares = int((promised.cpus or _FAIR_CORES) * _SHARES_OF_A_CORE)
        _write_if_there(self._directories["cpu"] / "cpu.shares", max(2, shares))
        self._limits = wanted

    def _set_memory(self, limit: int) -> None:
        """Memory with swap may never be below memory alone, so the order depends on the direction."""
        memory = self._directories["memory"]
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        names = [name for name in names if (memory / name).exists()]
        for name in names if self._limits is None or limit <= self._limits[0] else reversed(names):
            _write(memory / name, limit)

    def join_descriptors(self) -> list[int]:
        """`tasks` of each hierarchy: moving oneself needs no lock on every fork of the host."""
        return self._doors.values()

    def counters(self) -> Counters:
        """The meters now."""
        return Counters(
            cpu_s=self._meters.number("cpu") / 1e9,
            peak_memory_bytes=self._peak.number("peak"),
            oom_kills=self._meters.field("oom", "oom_kill"),
            refused_forks=self._meters.field("forks", "max"),
            throttled_s=self._meters.field("throttle", "throttled_time") / 1e9,
        )

    def reset_peak(self) -> None:
        """Start a new high-water mark."""
        self._peak.write("peak", "0")

    def unthrottled(self) -> contextlib.AbstractContextManager[None]:
        """No bound on processor time meanwhile."""
        return self._quota.lifted()

    def close(self) -> None:
        """Close the files kept open."""
        for files in (self._meters, self._peak, self._doors):
            files.close()


class GroupV2:
    """One directory in the unified hierarchy."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._quota = _Quota(directory / "cpu.max")
        self._limits: _Applied | None = None
        meters = {
            "cpu": "cpu.stat",
            "oom": "memory.events",
            "forks": "pids.events",
            "current": "memory.current",
        }  # fmt: skip - one row
        self._meters = _Files({name: directory / file for name, file in meters.items()}, os.O_RDONLY)
        self._peak = _Files({"peak": directory / "memory.peak"}, os.O_RDWR)
        self._doors = _Files({"procs": directory / "cgroup.procs"}, os.O_WRONLY)

    def apply(self, limits: Limits) -> None:
        """Set the limits of the next sandbox."""
        wanted = (limits.memory_bytes, limits.pids, limits.cpus, limits.guarantee)
        if wanted == self._limits:
            return
        _write(self._directory / "memory.max", limits.memory_bytes)
        _write_if_there(self._directory / "memory.swap.max", 0)
        _write(self._directory / "pids.max", limits.pids)
        _write(self._directory / "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}")
        promised = limits.guarantee
        _write_if_there(self._directory / "memory.low", _sure_memory(promised))
        weight = int((promised.cpus or _FAIR_CORES) * _WEIGHT_OF_A_CORE)
        _write_if_there(self._directory / "cpu.weight", min(max(1, weight), _MOST_WEIGHT))
        self._limits = wanted

    def join_descriptors(self) -> list[int]:
        """`cgroup.procs`."""
        return self._doors.values()

    def counters(self) -> Counters:
        """The meters now."""
        return Counters(
            cpu_s=self._meters.field("cpu", "usage_usec") / 1e6,
            peak_memory_bytes=self._peak.number("peak") or self._meters.number("current"),
            oom_kills=self._meters.field("oom", "oom_kill"),
            refused_forks=self._meters.field("forks", "max"),
            throttled_s=self._meters.field("cpu", "throttled_usec") / 1e6,
        )

    def reset_peak(self) -> None:
        """Start a new high-water mark (kernels from 6.12 on; before, the mark is the sandbox's)."""
        self._peak.write("peak", "0")

    def unthrottled(self) -> contextlib.AbstractContextManager[None]:
        """No bound on processor time meanwhile."""
        return self._quota.lifted()

    def close(self) -> None:
        """Close the files kept open."""
        for files in (self._meters, self._peak, self._doors):
            files.close()


def lift_quota(directory: Path) -> None:
    """Let what is killed in this directory of any hierarchy die without waiting for its share of a processor."""
    for name, text in _UNBOUNDED.items():
        with contextlib.suppress(OSError):  # no such file here, or the group is gone
            if (directory / name).exists():
                (directory / name).write_text(text)


def _write(path: Path, value: object) -> None:
    try:
        path.write_text(str(value))
    except OSError as error:
        raise Unavailable(f"cannot set {path}: {error.strerror}") from error


def _write_if_there(path: Path, value: object) -> None:
    if path.exists():
        _write(path, value)
