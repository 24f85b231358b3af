"""Models: Responses params in, a Response out; the same model answers in two more dialects, Chat and Messages.

a back end each    openai, chat, anthropic, azure, litellm, local, scripted; what those over HTTP share: endpoint,
                   with replicas, limits and exchange below it
conversion         chat_* and messages_*, whole and in pieces, around the events of the Responses API: events
over HTTP          server and face; rollout_endpoints for agents with a client of their own; accounts
before another     front; metered counts its calls, recorded has them on record
on record          recorded and capture write cassettes; replay answers from them; trajectories puts them together
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import BaseModel, ConfigDict

from gymbox.errors import Invalid
from gymbox.http import HttpClient
from gymbox.models.prices import Price

if TYPE_CHECKING:
    from gymbox.models.accounts import Account
    from gymbox.models.replicas import Try
    from gymbox.models.rollout_endpoints import RolloutEndpoint, RolloutEndpoints


@dataclass(frozen=True, slots=True)
class Call:
    """What a model call comes with beside its params."""

    http: HttpClient
    rollout: str = ""
    """Id of the rollout it belongs to, or ""."""
    turn: int = 0
    """How many calls this rollout made before."""
    gold: list[list[dict[str, Any]]] | None = None
    """The row's gold replies, a list of output items a turn; only the scripted model looks at them."""
    tries: list[Try] | None = None
    """Where to note each try at the back end, for a caller who asks."""

    def noting_tries(self) -> Call:
        """Itself where it notes its tries, else the same with a list for them."""
        # by hand, since dataclasses.replace costs more than all the rest of a call's accounting
        return self if self.tries is not None else Call(self.http, self.rollout, self.turn, self.gold, [])


class Model(BaseModel, ABC):
    """A model is its own configuration: a frozen pydantic class named by `_target_`, with the behaviour."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    price: Price | None = None
    """What its tokens cost, for the cost of recorded calls."""

    @property
    def has_store(self) -> bool:
        """Whether its back end keeps its answers itself, so that it understands `previous_response_id` and `store`."""
        return False

    @abstractmethod
    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        """Answer in the Responses format.

        Raises:
            ModelFailure: no usable answer, by kind, after bounded retries.
        """

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Answer a Chat Completions request; by default converted both ways around `responses`.

        Raises:
            ModelFailure: as `responses`.
            Invalid: the request holds what cannot be converted, by name.
        """
        from gymbox.models.chat_answers import chat_from_response
        from gymbox.models.chat_requests import params_from_chat

        return chat_from_response(await self.responses(params_from_chat(body), call))

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[dict[str, Any]]:
        """Answer as Responses events (see `events`), of which exactly one is terminal, the last; by default the whole
        answer is awaited and replayed. Closing the iterator ends the call at the back end.

        Raises:
            ModelFailure: as `responses`, before the first event; a later failure is a `response.failed` event.
        """
        from gymbox.models.events import replayed

        for event in replayed((await self.responses(params, call)).dump()):
            yield event

    async def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """Answer as Chat chunks; by default converted both ways around `stream`. A chunk with the usage and without
        choices is the last, whether it was asked for or not; a chunk with an `error` is the last, too.

        Raises:
            ModelFailure, Invalid: as `chat_completions`, before the first chunk.
        """
        from gymbox.models.chat_requests import params_from_chat
        from gymbox.models.chat_streams import chat_from_events

        async with aclosing(cast(Any, chat_from_events(self.stream(params_from_chat(body), call)))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Answer a request of Anthropic's Messages API; by default converted both ways around `responses`.

        Raises:
            ModelFailure, Invalid: as `chat_completions`.
        """
        from gymbox.models.messages_answers import messages_from_response
        from gymbox.models.messages_requests import params_from_messages

        return messages_from_response(await self.responses(params_from_messages(body), call))

    async def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """Answer as Anthropic's events; by default converted both ways around `stream`. The last is a `message_stop`
        or an `error`.

        Raises:
            ModelFailure, Invalid: as `chat_completions`, before the first event.
        """
        from gymbox.models.messages_requests import params_from_messages
        from gymbox.models.messages_streams import messages_from_events

        events = messages_from_events(self.stream(params_from_messages(body), call))
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                yield event

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """How many input tokens a Messages request has.

        Raises:
            Invalid: this back end cannot tell.
            ModelFailure: as `responses`.
        """
        raise Invalid(f"count_tokens: the back end of model {self.name!r} cannot count a request's tokens")

    def check(self) -> None:
        """Called before anything starts for which it will be asked. It need not be open.

        Raises:
            ConfigError: its settings are such that every call would fail.
        """

    async def open(self) -> None:
        """Load what is slow to load; called once before the first call."""

    async def ready(self, http: HttpClient, timeout: float) -> None:
        """Return once its back end answers; whoever has much to ask calls it first. It need not be open.

        Raises:
            ModelFailure: the back end did not answer at all within `timeout` seconds.
        """

    async def close(self) -> None:
        """Let go of it; safe to call twice."""


def _new_account() -> Account:
    from gymbox.models.accounts import Account

    return Account()


@dataclass(slots=True)
class BoundModel:
    """A model for one rollout: what an agent is handed."""

    model: Model
    http: HttpClient
    rollout: str = ""
    gold: list[list[dict[str, Any]]] | None = None
    endpoints: RolloutEndpoints | None = None
    """Where endpoints come from; without it, this rollout gets a server of its own when it asks for one."""
    turns: int = field(default=0, init=False)
    account: Account = field(default_factory=_new_account, init=False)
    """What its calls come to, those at its endpoint included."""
    _own: RolloutEndpoints | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.model.name

    async def responses(self, params: ResponsesParams) -> Response:
        """One call; see `Model.responses`."""
        call = Call(http=self.http, rollout=self.rollout, turn=self.turns, gold=self.gold)
        self.turns += 1
        with self.account.entry() as entry:
            response = await self.model.responses(params, call)
            entry.answered(response.usage and response.usage.dump())
            return response

    async def endpoint(self) -> RolloutEndpoint:
        """An address of this machine at which the model answers in every dialect until the rollout ends, for agents
        that bring a client of their own; its calls are recorded as this rollout's."""
        if self.endpoints is None:
            from gymbox.models.rollout_endpoints import RolloutEndpoints

            self.endpoints = self._own = RolloutEndpoints(self.model, self.http)
        return await self.endpoints.of(self.rollout, self.gold, self.account)

    async def close(self) -> None:
        """End the rollout's endpoint, if it had one; safe to call twice."""
        if self.endpoints is not None:
            self.endpoints.release(self.rollout)
        if self._own is not None:
            await self._own.close()
