"""Accounts: what is known of a rollout's last model calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.models.accounts import PATIENCE, PROMPTLY, Account


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def account(clock: Clock) -> Account:
    return Account(clock)


def answered(account: Account) -> None:
    with account.entry() as entry:
        entry.answered(None)


def failed(account: Account, kind: ErrorKind = ErrorKind.MODEL_UNAVAILABLE) -> None:
    with suppress(ModelFailure), account.entry():
        raise ModelFailure(kind, "away")


def given_up(account: Account, clock: Clock, after: float) -> None:
    with suppress(asyncio.CancelledError), account.entry():
        clock.now += after
        raise asyncio.CancelledError


def test_a_failure_counts_until_a_later_call_is_answered(account: Account) -> None:
    assert account.unanswered is None
    failed(account)
    assert account.unanswered is account.failure is not None
    answered(account)
    assert account.unanswered is account.failure is None


def test_a_call_that_fails_after_a_later_one_was_answered_takes_nothing_from_that(account: Account) -> None:
    with suppress(ModelFailure), account.entry():
        answered(account)
        raise ModelFailure(ErrorKind.MODEL_RATE_LIMITED, "too many")
    assert account.unanswered is None
    assert account.failure is not None  # which an agent may still stumble over


def test_a_refused_request_is_an_answer_unless_there_never_was_another(account: Account) -> None:
    failed(account, ErrorKind.MODEL_REFUSED_REQUEST)
    assert account.unanswered is not None
    answered(account)
    failed(account, ErrorKind.MODEL_REFUSED_REQUEST)
    assert account.unanswered is None


@pytest.mark.parametrize(("after", "counts"), [(PATIENCE - 0.1, False), (PATIENCE, True)])
def test_who_gives_up_has_to_have_waited_for_that_to_be_the_models_failure(
    account: Account, clock: Clock, after: float, counts: bool
) -> None:
    answered(account)
    given_up(account, clock, after)
    assert account.waited == pytest.approx(after)
    assert (account.unanswered is not None) is counts
    answered(account)
    assert (account.waited, account.unanswered) == (None, None)


def test_a_call_that_is_under_way_counts_as_one_that_is_given_up(account: Account, clock: Clock) -> None:
    with account.entry():
        clock.now += PATIENCE
        assert account.unanswered is not None and account.unanswered.rollout_kind is ErrorKind.MODEL_TIMED_OUT
        answered(account)
        assert (account.waited, account.unanswered) == (None, None)


@pytest.mark.parametrize(("pause", "counts"), [(PROMPTLY - 0.1, False), (PROMPTLY, True)])
def test_a_stream_is_given_up_only_after_silence(account: Account, clock: Clock, pause: float, counts: bool) -> None:
    with suppress(GeneratorExit), account.entry() as entry:
        clock.now += PATIENCE
        entry.saw_chunk({"choices": [{"index": 0, "delta": {"content": "a"}}]})
        clock.now += pause
        raise GeneratorExit
    assert (account.unanswered is not None) is counts
