"""LiteLLM: every provider that LiteLLM knows, called by it in this process over our own connections."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Self

from pydantic import Field, PrivateAttr, model_validator

from gymbox.errors import ConfigError, ErrorKind
from gymbox.http import HttpClient, retry_after
from gymbox.models.chat import ChatModel
from gymbox.models.endpoint import Endpoint
from gymbox.models.exchange import Exchange, Fault, kind_of_status, raise_told_error
from gymbox.models.openai import OpenAIModel
from gymbox.models.replicas import Replica

INSTALL = "model=litellm needs LiteLLM: pip install 'gymbox[litellm]'"
PROVIDERS_OWN = "litellm://provider"
"""Stands for the address that LiteLLM itself knows."""
_FUNCTIONS = {"/chat/completions": "acompletion", "/responses": "aresponses"}
_closing: set[asyncio.Task[None]] = set()


class LiteLLM(Endpoint):
    """What both APIs share; `name` is the model's name with LiteLLM's provider first, such as `anthropic/claude-…`.

    LiteLLM brings its request to the provider through the aiohttp session that all models share. Its own retries are
    off: they are made here, by kind.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of LiteLLM's call (`aws_region_name`, `vertex_project`, `drop_params`, …)."""

    _models_path: ClassVar[str] = ""
    _library: Any = PrivateAttr(None)

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        return self  # LiteLLM knows the providers' addresses

    async def open(self) -> None:
        if self._library is None:
            self._library = await asyncio.to_thread(_loaded)
        await super().open()

    def _replicas(self) -> list[Replica]:
        return super()._replicas() or [Replica.model_construct(url=PROVIDERS_OWN)]

    def _exchange(
        self, replica: Replica, path: str, body: dict[str, Any], *, seconds: float, until: float
    ) -> Exchange:
        function = _FUNCTIONS[path]
        key = replica.api_key or self.api_key
        arguments = {**self.options, **body, "num_retries": 0, "max_retries": 0, "timeout": seconds}
        if self.headers:
            arguments["extra_headers"] = self._headers()
        if key is not None:
            arguments["api_key"] = key.get_secret_value()
        if replica.url != PROVIDERS_OWN:
            arguments["api_base"] = replica.url
        call = getattr(self._library, function)
        where = f"{replica.url} (litellm.{function})"
        return _LiteLLMCall(where, call, arguments, seconds=seconds, idle=self.timeout, until=until)


class LiteLLMModel(LiteLLM, ChatModel):
    """A model that LiteLLM calls by `acompletion`, its Chat Completions form, which it has for every provider."""


class LiteLLMResponsesModel(LiteLLM, OpenAIModel):
    """A model that LiteLLM calls by `aresponses`, its Responses form. Of models that it does not know to stream, a
    stream has the whole answer at once."""


def _loaded() -> Any:
    # else it asks the net for a list of prices as it is imported
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        with warnings.catch_warnings(action="ignore"):  # of how it declares its own types
            import litellm
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


class _LiteLLMCall(Exchange):
    """A call of LiteLLM as the exchange that it makes."""

    def __init__(
        self, where: str, call: Any, arguments: dict[str, Any], *, seconds: float, idle: float, until: float
    ) -> None:
        super().__init__(where, seconds=seconds, idle=idle, until=until)
        self._call = call
        self._arguments = arguments
        self._answer: Any = None
        self._events: AsyncIterator[Any] | None = None
        self._first: Any = None

    async def send(self, http: HttpClient, body: bytes, headers: dict[str, str]) -> None:
        try:
            async with asyncio.timeout_at(self._answer_by):
                self._answer = await self._call(**self._arguments, shared_session=await http.session())
        except Exception as error:
            raise self._fault(error) from error
        self.status = 200

    async def whole(self) -> Any:
        found = _plain(self._answer)
        raise_told_error(found)
        return found

    async def first_event(self) -> Any:
        if not hasattr(self._answer, "__aiter__"):
            return await self.whole()
        self._events = aiter(self._answer)
        try:
            async with asyncio.timeout_at(self._answer_by):
                self._first = _plain(await anext(self._events))
        except StopAsyncIteration as error:
            raise Fault(ErrorKind.MODEL_BAD_RESPONSE, "ended its stream before it began") from error
        except Exception as error:
            raise self._fault(error) from error
        raise_told_error(self._first, of_event=True)
        return None

    async def _parts(self) -> AsyncIterator[bytes]:
        assert self._events is not None
        yield _event(self._first)
        try:
            async for event in self._events:
                yield _event(_plain(event))
        except Exception as error:
            raise self._fault(error) from error
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if hasattr(answer, "aclose"):
            # closed at once, though nobody waits for it
            task = asyncio.ensure_future(answer.aclose())
            _closing.add(task)
            task.add_done_callback(_closing.discard)

    def _fault(self, error: Exception) -> Fault:
        if isinstance(error, TimeoutError):
            return Fault(ErrorKind.MODEL_TIMED_OUT, f"did not answer within {self._seconds:g} s")
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            text = f"gave no answer that LiteLLM can use ({type(error).__name__}: {error})"
            return Fault(ErrorKind.MODEL_BAD_RESPONSE, text[:500])
        response = getattr(error, "response", None)
        wait = retry_after(getattr(response, "headers", None) or {})
        self.status = status
        kind = kind_of_status(status)
        return Fault(kind, f"answered {status}: {type(error).__name__}: {error}"[:600], retry_after=wait)


def _plain(found: Any) -> Any:
    """What LiteLLM gave, as JSON has it."""
    return found.model_dump(mode="json", exclude_none=True, warnings=False) if hasattr(found, "model_dump") else found


def _event(found: Any) -> bytes:
    return b"data: " + json.dumps(found).encode() + b"\n\n"
