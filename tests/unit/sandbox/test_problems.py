"""Problems: what a status and a body mean to whoever gets them."""

from __future__ import annotations

import pytest
from gymbox_sandbox.problems import Internal, Invalid, Problem, Unavailable, from_wire, of_status


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Invalid), (418, Invalid), (500, Internal), (502, Unavailable), (599, Internal)]
)
def test_every_status_has_a_kind_and_below_500_it_is_the_callers_fault(status: int, kind: type[Problem]) -> None:
    assert of_status(status) is kind
    assert type(from_wire(status, None, where="GET /")) is kind


def test_an_answer_that_is_no_failure_where_a_problem_was_due_is_a_bug_of_the_other_side() -> None:
    assert type(from_wire(200, [], where="GET /")) is Internal
