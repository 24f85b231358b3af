"""Rollout endpoints: a model at an address of this machine, for agents that bring their own client (the OpenAI or
Anthropic SDK, a framework, a command-line harness). Each rollout has a URL and a key of its own, so that each call is
recorded as that rollout's."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send

from gymbox.errors import Gone, Unauthorized
from gymbox.guard import bearer
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.accounts import Account, Entry
from gymbox.models.front import CountingModel
from gymbox.models.rollout_paths import rollout_in, rollout_path


@dataclass(frozen=True, slots=True)
class RolloutEndpoint:
    """Where one rollout's agent reaches its model, as long as the rollout runs."""

    url: str
    """Base URL for clients that add `/v1` themselves, as Anthropic's does."""
    key: str = field(repr=False)
    """API key; it opens this rollout's URL only."""
    model: str
    """Name to ask for."""

    @property
    def base_url(self) -> str:
        """Base URL for clients that expect it to end in `/v1`, as OpenAI's does."""
        return f"{self.url}/v1"


class RolloutEndpoints:
    """Hands out endpoints of a model; its server starts with the first one, on a free loopback port.

    Args:
        model: already open; it stays so.
        http: the client that the model's calls go through; the caller's, and closed by the caller.
    """

    def __init__(self, model: Model, http: HttpClient) -> None:
        self._http = http
        self._model = _OfRollouts.before(model)
        self._secret = secrets.token_bytes(32)
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._url = ""

    async def of(
        self, rollout: str, gold: list[list[dict[str, Any]]] | None = None, account: Account | None = None
    ) -> RolloutEndpoint:
        """The endpoint of a rollout, the same each time; until `release`.

        Args:
            account: where its calls are counted.
        """
        async with self._starting:
            if not self._url:
                await self._start()
        self._model.running[rollout] = _Running(gold, account or Account())
        return RolloutEndpoint(self._url + rollout_path(rollout), self._key(rollout), self._model.name)

    def release(self, rollout: str) -> None:
        """Refuse further calls of a rollout; safe to call twice."""
        self._model.running.pop(rollout, None)

    async def close(self) -> None:
        """Stop the server; safe to call twice."""
        self._model.running.clear()
        self._url = ""
        await self._stack.aclose()

    async def _start(self) -> None:
        # most runs need no server: its libraries are loaded where one does
        from gymbox.guard import Guard
        from gymbox.models.server import ModelServer
        from gymbox.serving import Listener

        app = ModelServer(self._model, self._http).setup_webserver()
        guard = Guard(body_limit=64 * 1024 * 1024)
        listener = await self._stack.enter_async_context(Listener(_Keys(app, self._key), guard, drain=1))
        self._url = listener.url

    def _key(self, rollout: str) -> str:
        digest = hmac.new(self._secret, rollout.encode(), hashlib.sha256).hexdigest()
        return f"gbx_key_{digest}"


class _Keys:
    """An ASGI app that answers only calls which bring the key of the rollout in their path."""

    def __init__(self, app: ASGIApp, key: Callable[[str], str]) -> None:
        self.app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/healthz":
            rollout = rollout_in(scope["path"])
            headers = dict(scope["headers"])
            brought = bearer(headers.get(b"authorization", b"")) or headers.get(b"x-api-key", b"").decode("latin-1")
            if rollout is None or not hmac.compare_digest(brought.encode(), self._key(rollout).encode()):
                raise Unauthorized("this is a rollout's model: use the URL and the key that the agent was given")
        await self.app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Running:
    """A rollout that may call."""

    gold: list[list[dict[str, Any]]] | None
    """Replies for a scripted model."""
    account: Account


class _OfRollouts(CountingModel):
    """The model, for rollouts that are running; opened and closed by whoever owns it."""

    running: dict[str, Any] = Field(default_factory=dict)
    """Id -> _Running."""

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        # it samples nothing: no part of the account
        return await self._model.count_tokens(body, self._known(call)[0])

    @contextmanager
    def _entered(self, call: Call) -> Iterator[tuple[Call, Entry]]:
        known, account = self._known(call)
        with account.entry() as entry:
            yield known, entry

    def _known(self, call: Call) -> tuple[Call, Account]:
        """The call with what the rollout brings to it, and the rollout's account.

        Raises:
            Gone: the rollout is over.
        """
        running = self.running.get(call.rollout)
        if running is None:
            raise Gone(f"rollout {call.rollout or '(none)'} has ended, and its model with it")
        running.account.by_endpoint = True
        return replace(call, gold=running.gold), running.account
