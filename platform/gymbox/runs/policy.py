"""Policy: the model of a run that is trained while it samples, and which version of it sampled which rollout."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.errors import ConfigError
from gymbox.models import Call, Model
from gymbox.models.events import Event
from gymbox.models.front import FrontModel

_ATTEMPT = re.compile(r"\.\d+\.\d+$")
"""What the id of a later attempt at a rollout ends with."""


@dataclass(slots=True)
class _Serving:
    """A model that answers, or still ends what it began."""

    model: Model
    calls: int = 0
    retired: bool = False


class PolicyModel(FrontModel):
    """Stands before a model that may be replaced while calls are under way, and notes for each attempt at a rollout
    which version answered its first call and which its last. A model that was replaced is closed once its last call
    has ended."""

    _serving: _Serving = PrivateAttr()
    _version: int | None = PrivateAttr(None)
    _seen: dict[str, tuple[int | None, int | None]] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, model: Model) -> PolicyModel:
        """`model`, of no version yet."""
        made = cls.before(model)
        made._serving = _Serving(model)
        return made

    @property
    def version(self) -> int | None:
        """Of what answers now; None as long as nobody told."""
        return self._version

    async def update(self, version: int, model: Model | None = None) -> None:
        """From now on answer as this version, by `model` where one is given; a call under way ends where it began.

        Raises:
            ConfigError: the version is no number, or the new model none or cannot be opened; the old one stays.
        """
        _check_version(version)
        if not isinstance(model, Model | None):
            raise ConfigError(f"model={model!r:.80}: give a model as an object, such as gymbox.OpenAIModel(…)")
        if model is not None and model is not self._serving.model:
            await model.open()
            before, self._serving, self._model = self._serving, _Serving(model), model
            before.retired = True
            await self._close_unused(before)
        self._version = version

    def tell(self, version: int) -> None:
        """What answers is this version now, by the same model.

        Raises:
            ConfigError: it is no whole number.
        """
        _check_version(version)
        self._version = version

    def notes(self, attempt: str) -> dict[str, Any]:
        """For an attempt's result: the versions at the beginning of its first call and the end of its last; then they
        are forgotten. Nothing where no version was told."""
        first, last = self._seen.pop(attempt, (None, None))
        return {} if last is None else {"policy_version": first, "policy_version_end": last}

    def sampled_before(self, version: int) -> list[str]:
        """The rollouts under way whose first call was answered by an older version."""
        old = [attempt for attempt, (first, _) in self._seen.items() if first is not None and first < version]
        return [_ATTEMPT.sub("", attempt) for attempt in old]

    def forget(self, rollout: str) -> None:
        """A rollout has ended without asking for its notes."""
        for attempt in [each for each in self._seen if _ATTEMPT.sub("", each) == rollout]:
            del self._seen[attempt]

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        async with self._answering(call) as model:
            return await model.responses(params, call)

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        async with self._answering(call) as model:
            return await model.chat_completions(body, call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        async with self._answering(call) as model:
            return await model.messages(body, call)

    def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        return self._streamed(lambda model: partial(model.stream, params), call)

    def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(lambda model: partial(model.chat_stream, body), call)

    def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[Event]:
        return self._streamed(lambda model: partial(model.messages_stream, body), call)

    async def _streamed(
        self, stream_of: Callable[[Model], Callable[[Call], AsyncIterator[Event]]], call: Call
    ) -> AsyncIterator[Event]:
        async with self._answering(call) as model:
            async with aclosing(cast(Any, stream_of(model)(call))) as events:
                async for event in events:
                    yield event

    @asynccontextmanager
    async def _answering(self, call: Call) -> AsyncIterator[Model]:
        serving, began = self._serving, self._version
        serving.calls += 1
        first, last = self._seen.get(call.rollout, (began, began))
        if call.rollout:
            self._seen[call.rollout] = (first, last)
        try:
            yield serving.model
        finally:
            serving.calls -= 1
            if call.rollout in self._seen:
                # weights may be replaced behind an address while it answers: its end counts, not its beginning
                self._seen[call.rollout] = (first, self._version)
            await self._close_unused(serving)

    async def _close_unused(self, serving: _Serving) -> None:
        if serving.retired and not serving.calls:
            await serving.model.close()


def _check_version(version: Any) -> None:
    """
    Raises:
        ConfigError: it is no whole number, so nothing could be said of how old a rollout is.
    """
    if type(version) is not int:
        raise ConfigError(f"policy version {version!r:.80} is no whole number; count them, such as 0, 1, 2")
