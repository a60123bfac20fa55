import pytest

from temper.client.cli.doctor import backend_finding, sandbox_findings

GOOD = {
    "backend": "namespaces",
    "works": True,
    "isolation": "namespace",
    "cgroup_mode": "v1",
    "enforced": ["memory_bytes", "pids"],
    "advisory": [],
    "network_modes": ["none"],
    "notes": [],
}


def verdicts(found: dict[str, object]) -> dict[str, str]:
    return {finding.what: finding.verdict for finding in sandbox_findings(found)}


def test_a_working_backend_is_named_with_what_it_enforces():
    sandbox, limits = sandbox_findings(GOOD)
    assert (sandbox.verdict, sandbox.detail) == ("ok", "namespaces: isolation namespace")
    assert (limits.verdict, limits.detail) == ("ok", "cgroups v1, enforced: memory_bytes, pids")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"isolation": "weak"}, {"sandbox": "warning", "limits": "ok"}),
        ({"advisory": ["pids"]}, {"sandbox": "ok", "limits": "warning"}),
        ({"works": False, "reason": "unshare: not permitted", "hint": "run as root"}, {"sandbox": "fault"}),
        ({"works": False}, {"sandbox": "fault"}),
    ],
)
def test_weak_isolation_and_advisory_limits_are_warnings_and_a_broken_backend_a_fault(change, expected):
    assert verdicts(GOOD | change) == expected


def test_a_fault_says_why_and_the_way_out():
    (finding,) = sandbox_findings({"works": False, "reason": "unshare: not permitted", "hint": "run as root"})
    assert finding.detail == "unshare: not permitted; run as root"


def test_a_backend_that_is_absent_is_no_fault_and_says_why() -> None:
    line = backend_finding({"backend": "docker", "works": False, "reason": "no engine", "hint": "start it"})
    assert (line.verdict, line.detail) == ("absent", "no engine; start it")


def test_a_backend_that_works_says_how_well_it_isolates() -> None:
    line = backend_finding({"backend": "gvisor", "works": True, "isolation": "vm", "start_cost": "container"})
    assert (line.verdict, line.what) == ("ok", "sandbox gvisor")
    assert "vm" in line.detail
