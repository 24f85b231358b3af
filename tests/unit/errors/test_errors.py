"""Errors: the same failure has the same kind, whether it was raised here or came over the wire."""

from __future__ import annotations

import json

import pytest
from gymbox.errors import (
    Conflict,
    ErrorKind,
    ImageBuildFailed,
    Internal,
    Invalid,
    ModelFailure,
    NotFound,
    Problem,
    RolloutError,
    SandboxEnded,
    Stage,
    StartFailed,
    Unavailable,
    from_wire,
    log_ending,
)
from gymbox_sandbox.lifecycle import Ended


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ImageBuildFailed("step 3 failed", log="E: no package"), ErrorKind.IMAGE_BUILD_FAILED),
        (StartFailed(Ended(cause="exited", detail="it exited", logs="boom")), ErrorKind.SANDBOX_START_FAILED),
        (StartFailed(Ended(cause="oom_killed", detail="too large")), ErrorKind.OOM_KILLED),
        (StartFailed(Ended(cause="disk_full", detail="no room")), ErrorKind.DISK_FULL),
        (SandboxEnded(Ended(cause="expired", detail="nobody renewed it")), ErrorKind.SANDBOX_EXPIRED),
        (ModelFailure(ErrorKind.MODEL_REFUSED_REQUEST, "too long"), ErrorKind.MODEL_REFUSED_REQUEST),
    ],
)
def test_a_failure_keeps_its_kind_and_its_logs_across_the_wire(failure: Problem, kind: ErrorKind) -> None:
    here = RolloutError.at(Stage.PROVISION, failure)
    told = from_wire(failure.status, json.loads(json.dumps(failure.to_wire())), where="controller")

    assert here.kind is kind
    assert RolloutError.at(Stage.PROVISION, told) == here


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (Unavailable("no engine answers"), ErrorKind.PROVIDER_UNAVAILABLE, True),
        (NotFound("there is no environment 'typo'"), ErrorKind.INTERNAL, False),
        (Invalid("labels are wrong"), ErrorKind.INTERNAL, False),
        (Conflict("another request's id"), ErrorKind.INTERNAL, False),
        (Internal("a bug"), ErrorKind.INTERNAL, False),
    ],
)
def test_only_what_may_pass_is_tried_again_when_no_sandbox_can_be_had(
    error: Problem, kind: ErrorKind, retryable: bool
) -> None:
    recorded = RolloutError.at(Stage.PROVISION, error)

    assert (recorded.kind, recorded.retryable) == (kind, retryable)


def test_a_start_that_failed_shows_the_end_of_its_log_also_after_the_wire() -> None:
    failed = StartFailed(Ended(cause="failed_to_start", detail="it did not answer", logs="one\n\nKeyError: 'x'\n"))
    assert failed.detail == "it did not answer"
    assert str(failed) == "it did not answer; its log ends with: one | KeyError: 'x'"
    assert str(StartFailed(Ended.model_validate(failed.to_wire()["ended"]))) == str(failed)
    assert str(StartFailed(Ended(cause="failed_to_start", detail="not a word"))) == "not a word"


def test_the_end_of_a_log_is_bounded_and_does_nothing_to_a_terminal() -> None:
    told = log_ending("\n".join(["\x1b[2Jred", *map(str, range(9)), "x" * 5000, "the end\x07"]))
    assert len(told) < 500 and told.endswith(r"xxx | the end\x07") and "\x1b" not in told
    assert log_ending(" \n\n") == ""
