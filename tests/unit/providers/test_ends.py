"""Why a server is no more, as every provider tells it."""

from __future__ import annotations

import pytest
from gymbox.errors import ErrorKind
from gymbox.providers.ends import LOG_LIMIT, last_lines, never_ready, why_it_ended


@pytest.mark.parametrize(
    ("exit_code", "oom", "logs", "cause"),
    [
        (137, True, "", "oom_killed"),
        (1, True, "", "oom_killed"),
        (0, True, "", "exited"),
        (137, False, "", "killed"),
        (143, False, "", "killed"),
        (139, False, "", "exited"),
        (1, False, "OSError: [Errno 28] No space left on device", "disk_full"),
        (3, False, "Traceback", "exited"),
    ],
)
def test_the_cause_of_an_end_follows_from_exit_code_memory_and_log(
    exit_code: int, oom: bool, logs: str, cause: str
) -> None:
    ended = why_it_ended("box-1", exit_code, logs, out_of_memory_at=96 if oom else None)
    assert (ended.cause, ended.exit_code, ended.logs) == (cause, exit_code, logs)
    assert "box-1" in ended.detail and ("96 MiB" in ended.detail) == (cause == "oom_killed")


@pytest.mark.parametrize(("exit_code", "oom"), [(3, None), (137, None), (137, 96)])
def test_a_service_that_ended_has_its_own_name_and_not_that_of_its_container(exit_code: int, oom: int | None) -> None:
    ended = why_it_ended("box-1.web", exit_code, "", out_of_memory_at=oom, service="web")
    assert ended.detail.startswith("service web ") and "box-1" not in ended.detail


def test_a_service_that_never_was_ready_is_told_in_one_sentence() -> None:
    failed = never_ready(why_it_ended("box-1.web", 3, "starting\nboo\n", service="web"))
    assert failed.detail == "service web ended by itself with exit code 3, before it was ready"
    assert str(failed) == f"{failed.detail}; its log ends with: starting | boo"


@pytest.mark.parametrize(("exit_code", "logs"), [(137, ""), (139, ""), (3, "Traceback"), (0, "")])
def test_what_never_was_ready_failed_to_start_whatever_ended_it(exit_code: int, logs: str) -> None:
    failed = never_ready(why_it_ended("box-1", exit_code, logs))
    assert (failed.ended.cause, failed.ended.exit_code, failed.ended.logs) == ("failed_to_start", exit_code, logs)
    assert failed.rollout_kind is ErrorKind.SANDBOX_START_FAILED
    assert "before it was ready" in failed.detail


def test_a_limit_that_a_start_ran_into_is_told_as_that() -> None:
    assert never_ready(why_it_ended("box-1", 137, "", out_of_memory_at=96)).ended.cause == "oom_killed"
    assert never_ready(why_it_ended("box-1", 1, "No space left on device")).ended.cause == "disk_full"


def test_an_endless_line_is_cut_from_the_front() -> None:
    lines = last_lines(b"x" * 10 * LOG_LIMIT + b"y")
    assert len(lines) == LOG_LIMIT and lines.endswith("xy")


def test_the_last_lines_are_as_many_as_asked_for() -> None:
    assert last_lines(b"1\n2\n3\n", 2) == "2\n3"
