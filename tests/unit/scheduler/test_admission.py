"""Errors of qa, in the words of a job's specification."""

import pytest

from temper.scheduler.admission import _of_domain


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("wishes[1].name", "spec.domains[1].env"),
        ("wishes[1]", "spec.domains[1].env"),
        ("wishes[1].env", "spec.domains[1].env"),
        ("wishes[0].params_json", "spec.domains[0].params_json"),
        ("wishes[0].params_json.low", "spec.domains[0].params_json.low"),
        ("wishes", "wishes"),
        (None, None),
    ],
)
def test_the_path_of_a_wish_is_that_of_its_domain(field: str | None, path: str | None) -> None:
    assert _of_domain(field) == path
