"""Chat: models behind any Chat Completions endpoint (vLLM, SGLang, llama.cpp, …), converted both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Literal, cast

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.models import Call
from gymbox.models.chat_answers import chat_error, response_from_chat
from gymbox.models.chat_messages import as_endpoints_take
from gymbox.models.chat_requests import chat_from_params
from gymbox.models.chat_streams import chunk_of_answer, events_from_chat, whole_chunks
from gymbox.models.endpoint import Endpoint
from gymbox.models.events import Event, one_terminal
from gymbox.models.messages_requests import params_from_messages
from gymbox.models.sse import objects_in
from gymbox.models.stream_shapes import check_chunk, checked
from gymbox.models.structured import check_structured
from gymbox.models.token_counts import count_of_chat
from gymbox.models.token_ids import echo_token_ids, with_prefix_mark


class ChatModel(Endpoint):
    """A model behind `POST {base_url}/chat/completions`.

    Fields of the request that the Responses API does not name (`top_k`, `seed`, `chat_template_kwargs`, …) are sent as
    they are. What a Chat request cannot say is refused by name before anything is sent.
    """

    reasoning_field: Literal["reasoning_content", "reasoning", "think"] | None = "reasoning_content"
    """Where earlier reasoning goes back to the model: a field of the assistant's message, `<think>` tags before its
    text, or (null) nowhere. In answers all of them are understood."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the limit of an answer's tokens (`max_output_tokens`): OpenAI's own and Azure's refuse
    `max_tokens` for models that reason, while many others know nothing else."""
    token_ids: bool = False
    """Ask for the sampled token ids and their log-probs (`return_token_ids` of vLLM and SGLang) and keep them for
    training, on the last output item of each answer. An answer without them, or with ids that conflict, is no usable
    answer; one whose prompt does not begin with what was sampled before is marked `mask_sample` with the reason, and
    so is the rollout: do not train across it."""
    token_echo: bool = True
    """With `token_ids`: send the ids of the last sampled turn back on its message, so that a server which goes on from
    them (NeMo RL's, say) keeps the prefix exact; others ignore the fields."""

    _defaults: dict[str, Any] | None = PrivateAttr(None)

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        body, read = self._asked(params)
        return await self.post(call.http, "/chat/completions", body, read, call=call)

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        body, read = self._asked(params)
        async with aclosing(cast(Any, self.events(body, read, call))) as events:
            async for event in events:
                yield event

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Send a Chat request on with this model's name and defaults, and its history as every endpoint takes it; the
        answer comes back as it is. With `token_ids`, both are converted, so that the ids stand where they always do.

        Raises:
            ModelFailure: as `responses`.
            Invalid: it has no messages.
        """
        if self.token_ids:
            return await super().chat_completions(body, call)
        wanted = _wanted(body)

        def read(answer: Any) -> dict[str, Any]:
            for each in _each_choice(answer):
                check_structured(wanted, response_from_chat(each))
            found: dict[str, Any] = answer
            return found

        return await self.post(call.http, "/chat/completions", self._passed_on(body), read, call=call)

    async def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        """As `chat_completions`; where JSON is asked for, too, what came is known to be that only at the end, so the
        stream is converted."""
        converted = self.token_ids or bool(_wanted(body).model_extra)
        chunks = super().chat_stream(body, call) if converted else self._passed_through(body, call)
        async with aclosing(cast(Any, chunks)) as told:
            async for chunk in told:
                yield chunk

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """How many tokens the endpoint says that a Messages request has, as it is converted for it."""
        return await count_of_chat(self, self._asked(params_from_messages(body))[0], call)

    async def _passed_through(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        shared: dict[str, Any] | None = None
        asked = self._passed_on(body)
        count = asked.get("n")
        try:
            chunks = whole_chunks(self._chunks(asked, call), self.name, count if isinstance(count, int) else 1)
            async with aclosing(cast(Any, chunks)) as told:
                async for chunk in told:
                    shared = chunk
                    yield chunk
        except (ModelFailure, Invalid) as error:
            if shared is None:
                raise self._unusable(error) from error
            kept: dict[str, Any] = {name: value for name, value in shared.items() if name in _OF_CHUNK}
            yield {**kept, "choices": [], "error": chat_error(self._unusable(error))}

    async def events(self, body: dict[str, Any], read: Callable[[Any], Response], call: Call) -> AsyncIterator[Event]:
        """The answer to a Chat request as Responses events; see `Model.stream`.

        Args:
            read: makes the Response of the whole answer.
        """
        chunks = whole_chunks(self._chunks(body, call), self.name)
        events = events_from_chat(chunks, read, log_probs=not self.token_ids)
        events = one_terminal(events, self.name, redacted=self.redacted)
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                yield event

    async def _chunks(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        given = body.get("stream_options")
        options = {**(given if isinstance(given, dict) else {}), "include_usage": True}
        body = body | {"stream": True, "stream_options": options}
        async with self.open_stream(call.http, "/chat/completions", body, call=call, check=_check_whole) as stream:
            if stream.whole is not None:
                yield chunk_of_answer(stream.whole)
                return
            async with aclosing(cast(Any, checked(objects_in(aiter(stream)), check_chunk))) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _asked(self, params: ResponsesParams) -> tuple[dict[str, Any], Callable[[Any], Response]]:
        """The request for `params`, and how its answer is read."""
        merged = params.with_defaults(self.params)
        body = self._converted(merged) | {"model": self.name}
        if self.token_ids:
            body |= {"logprobs": True, "return_token_ids": True}
            if self.token_echo:
                body["messages"] = echo_token_ids(body["messages"], merged.items)

        def read(answer: Any) -> Response:
            response = response_from_chat(answer, max_output_tokens=merged.max_output_tokens, token_ids=self.token_ids)
            check_structured(merged, response)
            return with_prefix_mark(merged.items, response)

        return body, read

    def _converted(self, params: ResponsesParams) -> dict[str, Any]:
        return chat_from_params(params, reasoning_field=self.reasoning_field, limit_field=self.limit_field)

    def _passed_on(self, body: dict[str, Any]) -> dict[str, Any]:
        """A Chat request with this model's name and defaults."""
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise Invalid("messages: a Chat request needs a list of messages")
        if self._defaults is None:
            wanted = ResponsesParams.model_validate({"input": "?", **self.params})
            defaults = self._converted(wanted)
            self._defaults = {name: value for name, value in defaults.items() if name != "messages"}
        given = {name: value for name, value in body.items() if value is not None and name not in _DELIVERY}
        given["messages"] = as_endpoints_take(given["messages"])
        if given.get("tools") == []:
            given = {name: value for name, value in given.items() if name not in _OF_TOOLS}
        defaults = self._defaults
        if _LIMITS & given.keys():
            defaults = {name: value for name, value in defaults.items() if name not in _LIMITS}
        return {**defaults, **given, "model": self.name}

    def _unusable(self, error: ModelFailure | Invalid) -> ModelFailure:
        if isinstance(error, ModelFailure):
            return ModelFailure(error.rollout_kind, self.redacted(error.detail), retry_after=error.retry_after)
        text = f"model {self.name!r} streamed an unusable answer: {error.detail}"
        return ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, self.redacted(text))


_DELIVERY = ("stream", "stream_options")
_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
_LIMITS = {"max_tokens", "max_completion_tokens"}
_OF_CHUNK = ("id", "object", "created", "model")


def _wanted(body: dict[str, Any]) -> ResponsesParams:
    """What `check_structured` looks at, of a Chat request."""
    wanted = body.get("response_format")
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return ResponsesParams()
    named = wanted.get("json_schema")
    schema = named if isinstance(named, dict) else {}
    return ResponsesParams.model_validate({"text": {"format": {**schema, "type": wanted["type"]}}})


def _check_whole(answer: Any) -> None:
    for each in _each_choice(answer):
        response_from_chat(each)


def _each_choice(answer: Any) -> list[Any]:
    """The answer, or where it has several choices, an answer for each."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) < 2:
        return [answer]
    return [{**answer, "choices": [choice]} for choice in choices]
