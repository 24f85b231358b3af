"""Anthropic: models behind the Messages API, Anthropic's own or any server's that answers like it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import Field, PrivateAttr

from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.models import Call
from gymbox.models.endpoint import BaseUrl, Endpoint
from gymbox.models.events import TERMINAL, Event, failure_in, one_by_one, one_terminal, replayed
from gymbox.models.exchange import Fault
from gymbox.models.keys import refuse_without_key
from gymbox.models.messages_answers import response_from_messages
from gymbox.models.messages_requests import MAX_TOKENS, Thinking, messages_from_params
from gymbox.models.messages_streams import KINDS, events_from_messages, messages_from_events
from gymbox.models.messages_writer import error_event
from gymbox.models.sse import objects_in
from gymbox.models.structured import check_structured

_COUNTED = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "model")


class AnthropicModel(Endpoint):
    """A model behind `POST {base_url}/v1/messages`.

    Requests in the Messages format are sent on as they are, with this model's name and defaults; others are converted
    (see `messages_requests`). Fields that the Responses API does not name (`top_k`, …) are sent as they are, too.
    Source: Anthropic's Messages API reference.
    """

    base_url: BaseUrl | None = "https://api.anthropic.com"
    """Address of the API; the `/v1` at its end may be left out."""
    version: str = "2023-06-01"
    """Sent as `anthropic-version`."""
    beta: list[str] = Field(default_factory=list)
    """Names of features in trial, sent as `anthropic-beta`."""
    max_tokens: int = Field(MAX_TOKENS, ge=1)
    """The limit of an answer's tokens where a request sets none, since the API wants one. Thinking counts, too."""
    thinking: Thinking = "adaptive"
    """How `reasoning.effort` is asked for: `adaptive` thinking and `output_config.effort`, or a `budget` of tokens, as
    models before Claude 4.6 want it. A request without an effort gets what the model does by itself."""
    unsigned_thinking: bool = False
    """Send earlier reasoning back also where Anthropic did not sign it. Anthropic itself refuses that; other servers
    with this API want it."""

    _models_path: ClassVar[str] = "/v1/models"
    _defaults: dict[str, Any] | None = PrivateAttr(None)

    def check(self) -> None:
        given = self.name, self._replicas(), self.api_key, self.headers
        refuse_without_key(*given, host="api.anthropic.com", variable="ANTHROPIC_API_KEY")

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        merged = params.with_defaults(self.params)

        def read(answer: Any) -> Response:
            return _checked(response_from_messages(answer), merged)

        return await self.post(call.http, "/v1/messages", self._body(merged), read, call=call)

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        merged = params.with_defaults(self.params)
        async with aclosing(cast(Any, self._events(self._body(merged), merged, call))) as events:
            async for event in events:
                yield event

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Send a Messages request on; the answer comes back as it is.

        Raises:
            ModelFailure: as `responses`.
        """
        wanted = _wanted(body)

        def read(answer: Any) -> dict[str, Any]:
            _checked(response_from_messages(answer), wanted)
            found: dict[str, Any] = answer
            return found

        return await self.post(call.http, "/v1/messages", self._given(body), read, call=call)

    async def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """As `messages`; where JSON is asked for, what came is known to be that only at the end, so the stream is
        converted."""
        wanted, given = _wanted(body), self._given(body)
        converted = wanted.model_extra
        told = messages_from_events(self._events(given, wanted, call)) if converted else self._passed(given, call)
        async with aclosing(cast(Any, told)) as events:
            async for event in events:
                yield event

    async def _events(self, body: dict[str, Any], wanted: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        events = one_terminal(self._answering(body, wanted, call), self.name, redacted=self.redacted)
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                yield event

    async def _answering(self, body: dict[str, Any], wanted: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        async with self.open_stream(
            call.http, "/v1/messages", {**body, "stream": True}, call=call, check=response_from_messages
        ) as stream:
            if stream.whole is not None:
                for event in replayed(_checked(response_from_messages(stream.whole), wanted).dump()):
                    yield event
                return
            async with aclosing(cast(Any, events_from_messages(objects_in(aiter(stream))))) as events:
                async for event in events:
                    if event["type"] == "response.failed":
                        failure = failure_in(event["response"], self.name)
                        raise self._broken(failure.rollout_kind, failure.detail)
                    if event["type"] in TERMINAL:
                        _checked(Response.model_validate(event["response"]), wanted)
                    yield event

    async def _passed(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """The endpoint's own events; the last is `message_stop` or `error`, whatever it does."""
        begun = False
        try:
            async with self.open_stream(
                call.http, "/v1/messages", {**body, "stream": True}, call=call, check=response_from_messages
            ) as stream:
                if stream.whole is not None:
                    whole = replayed(response_from_messages(stream.whole).dump())
                    told = messages_from_events(one_by_one(whole))
                else:
                    told = self._whole_message(objects_in(aiter(stream)))
                async with aclosing(cast(Any, told)) as events:
                    async for event in events:
                        begun = begun or event["type"] != "ping"
                        yield event
            return
        except ModelFailure as error:
            failure = error
        except Invalid as error:
            text = f"model {self.name!r} streamed an unusable answer: {error.detail}"
            failure = ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, self.redacted(text))
        if not begun:
            raise failure
        yield error_event(failure.rollout_kind.value, failure.detail)

    async def _whole_message(self, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """The events up to `message_stop`, which is added where they break off once the model said why it stopped: the
        answer is whole.

        Raises:
            ModelFailure: they break off in mid-answer, or tell of an error.
            Invalid: they are none of this API.
        """
        begun = stopped = False
        async with aclosing(cast(Any, events)) as source:
            while True:
                try:
                    event = await anext(source, None)
                except ModelFailure:
                    if not stopped:
                        raise
                    event = None
                if event is None:
                    break
                name = event.get("type")
                if not isinstance(name, str):
                    raise Invalid(f"an event has no type: {event!r:.200}")
                if name == "error":
                    raise self._told_failure(event.get("error"))
                if not begun and name not in ("message_start", "ping"):
                    raise Invalid(f"its first event is a {name!r:.60}, not message_start")
                begun = begun or name == "message_start"
                stopped = stopped or _tells_why_it_stopped(event)
                yield event
                if name == "message_stop":
                    return
        if not stopped:
            raise ModelFailure(ErrorKind.MODEL_UNAVAILABLE, f"model {self.name!r} ended its stream in mid-answer")
        yield {"type": "message_stop"}

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """The input tokens of a Messages request, as the endpoint counts them.

        Raises:
            ModelFailure: as `responses`.
        """
        given = {name: value for name, value in self._given(body).items() if name in _COUNTED}

        def read(answer: Any) -> int:
            count = answer.get("input_tokens") if isinstance(answer, dict) else None
            if not isinstance(count, int):
                raise Invalid(f"a count of tokens has input_tokens, this is {answer!r:.200}")
            return count

        return await self.post(call.http, "/v1/messages/count_tokens", given, read, call=call)

    def _told_failure(self, error: Any) -> ModelFailure:
        told = error if isinstance(error, dict) else {"message": error}
        kind = KINDS.get(str(told.get("type")), ErrorKind.MODEL_UNAVAILABLE)
        return self._broken(kind, str(told.get("message") or "no reason given"))

    def _broken(self, kind: ErrorKind, reason: str) -> ModelFailure:
        return self._failure(Fault(kind, f"failed in mid-answer: {reason}"), "/v1/messages")

    def _body(self, params: ResponsesParams) -> dict[str, Any]:
        options: dict[str, Any] = {"thinking": self.thinking, "foreign": self.unsigned_thinking}
        return messages_from_params(params, max_tokens=self.max_tokens, **options) | {"model": self.name}

    def _given(self, body: dict[str, Any]) -> dict[str, Any]:
        """A Messages request with this model's name and defaults."""
        if self._defaults is None:
            self._defaults = self._body(ResponsesParams.model_validate({"input": "?", **self.params}))
        given = {name: value for name, value in body.items() if value is not None and name != "stream"}
        return {**self._defaults, **given, "model": self.name}

    def _url(self, base_url: str, path: str) -> str:
        return f"{base_url.removesuffix('/v1')}{path}"

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def _headers(self) -> dict[str, str]:
        beta = {"anthropic-beta": ",".join(self.beta)} if self.beta else {}
        return {"anthropic-version": self.version, **beta} | super()._headers()


def _tells_why_it_stopped(event: dict[str, Any]) -> bool:
    delta = event.get("delta")
    return event["type"] == "message_delta" and isinstance(delta, dict) and delta.get("stop_reason") is not None


def _checked(response: Response, wanted: ResponsesParams) -> Response:
    check_structured(wanted, response)
    return response


def _wanted(body: dict[str, Any]) -> ResponsesParams:
    """What `check_structured` looks at, of a Messages request."""
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("schema"), dict):
        return ResponsesParams()
    return ResponsesParams.model_validate({"text": {"format": {"type": "json_schema", "schema": wanted["schema"]}}})
