"""Outcome: what an agent did, or why it failed, with what only its model's account knows of it."""

from __future__ import annotations

from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task

from gymbox.agents import Agent, Tools
from gymbox.errors import ErrorKind, ModelFailure, Problem
from gymbox.models import BoundModel


async def outcome_of(agent: Agent, task: Task, model: BoundModel, tools: Tools) -> Response:
    """The agent's trajectory. Its `usage` is the sum of what the model answered, where the agent gives none or a
    client of its own made the calls, which rarely adds them up; an unknown sum replaces nothing.

    Raises:
        ModelFailure: the agent failed, and before that its model had: of the model's kind, with the agent's own words
            first. An agent's client knows that failure only as an HTTP error of some library.
        Exception: what else the agent raised.
    """
    try:
        response = await agent.run(task, model, tools)
    except (Problem, TimeoutError):
        raise  # of a kind already
    except Exception as error:
        failure = model.account.failure
        if failure is None:
            raise
        text = f"{type(error).__name__}: {error}"
        cause = "" if failure.detail in text else f" (its model: {failure.detail})"
        raise ModelFailure(failure.rollout_kind, f"{text}{cause}", retry_after=failure.retry_after) from error
    usage = model.account.usage
    if usage is None or (response.usage is not None and not model.account.by_endpoint):
        return response
    return response.model_copy(update={"usage": usage})


def check_answered(model: BoundModel) -> None:
    """Nothing is known of how well a model does whose last calls, made by a harness with a client of its own, got no
    answer. The harness may give up without a word of that, so what it leaves is not to be scored.

    Raises:
        ModelFailure: that is so, by the model's side; of the kind of its own failure where it knows one.
    """
    failure = model.account.unanswered
    if failure is not None:
        detail = f"the last model call of the harness got no answer: {failure.detail}"
        raise ModelFailure(failure.rollout_kind, detail, retry_after=failure.retry_after)


def check_let_through(unanswered: int) -> None:
    """The same of calls from a sandbox that did not get through to the model's side, or back.

    Raises:
        ModelFailure: that is so.
    """
    if unanswered:
        calls = "model call" if unanswered == 1 else f"{unanswered} model calls"
        detail = f"the last {calls} of the harness in the sandbox got no answer"
        raise ModelFailure(ErrorKind.MODEL_UNAVAILABLE, detail)


def given_up(model: BoundModel) -> str | None:
    """Why what a harness leaves tells little of its model, though it is scored: it did not wait for an answer. Were it
    not scored, whoever runs in there could withhold its score by asking once more and leaving."""
    waited = model.account.waited
    return None if waited is None else f"the last model call of the harness was given up after {waited:.1f} s"
