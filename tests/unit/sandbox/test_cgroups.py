from collections.abc import Callable
from pathlib import Path

import pytest

from temper.runtime.errors import Unavailable
from temper.sandbox.engine import cgroups, identity
from temper.sandbox.engine.base import Guarantee, Limits
from temper.sandbox.engine.cgroups import Mode
from temper.sandbox.engine.groups import GroupV1, GroupV2
from temper.sandbox.engine.verdict import Counters


def mount(number: int, path: Path, kind: str, options: str) -> str:
    return f"{number} 20 0:{number} / {path} rw,nosuid - {kind} {kind} rw,{options}"


def v1(root: Path, *names: str) -> list[str]:
    for name in names:
        (root / name).mkdir()
    return [mount(index, root / name, "cgroup", name) for index, name in enumerate(names, 30)]


def v2(root: Path, controllers: str) -> list[str]:
    (root / "unified").mkdir()
    (root / "unified" / "cgroup.controllers").write_text(controllers)
    return [mount(50, root / "unified", "cgroup2", "nsdelegate")]


def test_a_hybrid_host_with_an_empty_unified_tree_is_a_v1_host(tmp_path: Path) -> None:
    lines = v1(tmp_path, "memory", "pids", "cpu", "cpuacct") + v2(tmp_path, "")
    (tmp_path / "memory" / "mine").mkdir()
    layout = cgroups.detect("\n".join(lines), "4:memory:/mine\n8:pids:/\n0::/")
    assert layout.mode is Mode.V1
    assert layout.parents["memory"] == tmp_path / "memory" / "mine"
    assert layout.parents["pids"] == tmp_path / "pids"


def test_a_unified_tree_with_the_controllers_is_preferred(tmp_path: Path) -> None:
    lines = v2(tmp_path, "cpuset cpu io memory pids\n")
    layout = cgroups.detect("\n".join(lines), "0::/user.slice")
    assert (layout.mode, layout.parents["unified"]) == (Mode.V2, tmp_path / "unified")


def test_joint_mounts_count_for_each_of_their_controllers(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct").mkdir()
    lines = [*v1(tmp_path, "memory", "pids"), mount(40, tmp_path / "cpu,cpuacct", "cgroup", "cpu,cpuacct")]
    layout = cgroups.detect("\n".join(lines), "3:cpu,cpuacct:/")
    assert layout.mode is Mode.V1
    assert layout.parents["cpuacct"] == layout.parents["cpu"]


def test_without_controllers_there_is_no_mode_and_a_reason(tmp_path: Path) -> None:
    layout = cgroups.detect("\n".join(v1(tmp_path, "memory")), "0::/")
    assert layout.mode is Mode.NONE
    assert "pids" in layout.reason


def test_the_first_version_sets_and_reads_its_files(tmp_path: Path) -> None:
    directories = {name: tmp_path / name for name in ("memory", "pids", "cpu", "cpuacct")}
    for directory in directories.values():
        directory.mkdir()
        (directory / "tasks").touch()
    for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes"):
        (directories["memory"] / name).write_text("9000\n")
    (directories["memory"] / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (directories["pids"] / "pids.events").write_text("max 7\n")
    (directories["cpu"] / "cpu.stat").write_text("nr_periods 1\nthrottled_time 2000000000\n")
    (directories["cpuacct"] / "cpuacct.usage").write_text("1500000000\n")
    group = GroupV1(directories)
    (directories["memory"] / "memory.soft_limit_in_bytes").touch()
    (directories["cpu"] / "cpu.shares").touch()
    promised = Guarantee(memory_bytes=700, cpus=0.5, disk_bytes=50)
    group.apply(Limits(memory_bytes=1000, pids=5, cpus=1.5, guarantee=promised))
    assert (directories["memory"] / "memory.soft_limit_in_bytes").read_text() == "750"
    assert (directories["cpu"] / "cpu.shares").read_text() == "512"
    assert (directories["memory"] / "memory.memsw.limit_in_bytes").read_text() == "1000"
    assert (directories["pids"] / "pids.max").read_text() == "5"
    assert (directories["cpu"] / "cpu.cfs_quota_us").read_text() == "150000"
    assert group.counters() == Counters(1.5, 9000, 2, 7, 2.0)
    assert len(group.join_descriptors()) == 4
    group.close()


def test_the_second_version_sets_and_reads_its_files(tmp_path: Path) -> None:
    group_dir = tmp_path / "0"
    group_dir.mkdir()
    for name, text in {
        "cpu.stat": "usage_usec 2500000\nthrottled_usec 500000\n",
        "memory.events": "low 0\noom 1\noom_kill 3\n",
        "pids.events": "max 4\n",
        "memory.peak": "123\n",
        "memory.swap.max": "max",
        "memory.low": "0",
        "cpu.weight": "100",
        "cgroup.procs": "",
    }.items():
        (group_dir / name).write_text(text)
    group = GroupV2(group_dir)
    group.apply(Limits(memory_bytes=1000, pids=5, cpus=0.5, guarantee=Guarantee(memory_bytes=600, cpus=2)))
    assert (group_dir / "memory.low").read_text() == "600"
    assert (group_dir / "cpu.weight").read_text() == "200"
    assert (group_dir / "memory.max").read_text() == "1000"
    assert (group_dir / "memory.swap.max").read_text() == "0"
    assert (group_dir / "cpu.max").read_text() == "50000 100000"
    assert group.counters() == Counters(2.5, 123, 3, 4, 0.5)
    group.close()


@pytest.mark.parametrize(
    ("kind", "file", "set_to", "unbounded"),
    [
        (
            lambda home: GroupV1(dict.fromkeys(("memory", "pids", "cpu"), home)),
            "cpu.cfs_quota_us",
            "50000",
            "-1",
        ),
        (GroupV2, "cpu.max", "50000 100000", "max 100000"),
    ],
    ids=["v1", "v2"],
)  # fmt: skip - one row each
def test_processor_time_is_unbounded_only_while_something_is_killed(
    tmp_path: Path, kind: Callable[[Path], GroupV1 | GroupV2], file: str, set_to: str, unbounded: str
) -> None:
    for name in ("memory.limit_in_bytes", "tasks", "cgroup.procs"):
        (tmp_path / name).touch()
    group = kind(tmp_path)
    group.apply(Limits(cpus=0.5))
    with group.unthrottled():  # one kills a command
        assert (tmp_path / file).read_text() == unbounded
        second = group.unthrottled()
        second.__enter__()  # another ends the sandbox meanwhile
    assert (tmp_path / file).read_text() == unbounded
    second.__exit__(None, None, None)
    assert (tmp_path / file).read_text() == set_to
    group.close()


def test_a_group_that_is_gone_has_nothing_to_lift(tmp_path: Path) -> None:
    group = GroupV2(tmp_path / "0")
    with group.unthrottled():
        pass
    assert not (tmp_path / "0" / "cpu.max").exists()
    group.close()


def test_a_limit_that_the_kernel_refuses_names_its_file(tmp_path: Path) -> None:
    group = GroupV2(tmp_path / "0")
    (tmp_path / "0" / "memory.max").mkdir()
    with pytest.raises(Unavailable, match=r"memory\.max"):
        group.apply(Limits())
    group.close()


def test_groups_of_dead_owners_are_found_by_name_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    mine = identity.instance()
    namespace, pid, start = mine.split("-")
    names = [mine, f"{namespace}-{pid}-{int(start) + 1}", f"{int(namespace) + 1}-{pid}-1", "by-hand", "1-2"]
    for name in names:
        (tmp_path / f"{cgroups.PREFIX}{name}").mkdir()
    layout = cgroups.Layout(Mode.V2, {"unified": tmp_path})
    assert cgroups.orphans(layout) == [tmp_path / f"{cgroups.PREFIX}{names[1]}"]
    assert cgroups.remove_trees(cgroups.orphans(layout)) == 1


def test_what_is_left_of_a_dead_owner_dies_without_waiting_for_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_REMOVE_S", 0.0)  # a directory with files is no control group, and stays
    root = tmp_path / f"{cgroups.PREFIX}1-2-3"
    (root / "0").mkdir(parents=True)
    (root / "0" / "cpu.cfs_quota_us").write_text("5000")
    assert cgroups.remove_trees([root]) == 0
    assert (root / "0" / "cpu.cfs_quota_us").read_text() == "-1"
    assert not (root / "0" / "cpu.max").exists()
