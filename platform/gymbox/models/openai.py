"""OpenAI: models behind the Responses API, the format that gymbox speaks itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Literal, cast

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import FunctionCall, Reasoning, Response, ResponsesParams
from pydantic import ValidationError

from gymbox.errors import Invalid, ModelFailure
from gymbox.models import Call
from gymbox.models.chat_messages import object_arguments, reasoning_text
from gymbox.models.endpoint import BaseUrl, Endpoint
from gymbox.models.event_places import Places
from gymbox.models.events import Event, Gathered, failure_in, one_terminal, replayed, terminal, whole
from gymbox.models.exchange import error_of, kind_of_code
from gymbox.models.keys import refuse_without_key
from gymbox.models.messages_requests import params_from_messages
from gymbox.models.sse import objects_in
from gymbox.models.stream_shapes import check_event, check_parts, checked
from gymbox.models.structured import check_structured
from gymbox.models.token_counts import count_of_responses
from gymbox.models.token_ids import TRAINING_FIELDS, with_prefix_mark

_FINISHED = ("completed", "incomplete")
_OPENING = ("response.created", "response.in_progress")


class OpenAIModel(Endpoint):
    """A model behind `POST {base_url}/responses`: OpenAI's own, or any server that answers like it.

    Unset fields and nulls are not sent; earlier output goes back as it came, reasoning items with what follows them.
    An answer that took all its tokens is incomplete, whatever the server says: llama.cpp's calls it completed. Only
    one that ends with a whole call is not.
    """

    base_url: BaseUrl = "https://api.openai.com/v1"
    organization: str | None = None
    project: str | None = None
    keeps_responses: bool = True
    """Whether the endpoint keeps its answers, as OpenAI's own does: then `previous_response_id` and `store` are sent
    on to it. False: a server of this model keeps them itself, for a while."""
    reasoning_field: Literal["summary", "content"] = "summary"
    """Where the text of earlier reasoning goes back to the model that tells it in a summary only: as it came, which is
    all that OpenAI's own takes, or as its `content`, which servers of open models (llama.cpp, vLLM) want instead."""

    @property
    def has_store(self) -> bool:
        return self.keeps_responses

    def check(self) -> None:
        given = self.name, self._replicas(), self.api_key, self.headers
        refuse_without_key(*given, host="api.openai.com", variable="OPENAI_API_KEY")

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        body = self._body(params)
        return await self.post(call.http, "/responses", body, _reader(params, body), call=call)

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        body = self._body(params) | {"stream": True}
        events = one_terminal(self._events(body, _reader(params, body), call), self.name, redacted=self.redacted)
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                yield event

    async def _events(self, body: dict[str, Any], read: Callable[[Any], Response], call: Call) -> AsyncIterator[Event]:
        async with self.open_stream(call.http, "/responses", body, call=call, check=read) as stream:
            if stream.whole is not None:
                for event in replayed(read(stream.whole).dump()):
                    yield event
                return
            gathered, places = Gathered(self.name), Places()

            def check(event: Event) -> None:
                places.fill(event)
                check_event(event)

            async for event in checked(objects_in(aiter(stream)), check):
                event.pop("sequence_number", None)
                kind = event.get("type")
                if kind == "error":
                    code, text = error_of(event)
                    raise ModelFailure(kind_of_code(code), f"model {self.name!r} failed in mid-answer: {text}")
                if kind == "response.failed":
                    told = event.get("response")
                    raise failure_in(told if isinstance(told, dict) else {}, self.name)
                if kind in ("response.completed", "response.incomplete"):
                    yield terminal(whole(read(gathered.whole(event)).dump()))
                    return
                gathered.add(event)
                if kind in _OPENING:
                    # official clients go on from what it has, so it has it all
                    event["response"] = whole({"status": "in_progress", **event["response"]})
                yield event

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """How many tokens the endpoint says that a Messages request has, as it is converted for it."""
        return await count_of_responses(self, self._body(params_from_messages(body)), call)

    def _body(self, params: ResponsesParams) -> dict[str, Any]:
        body = request_body(params, self.params) | {"model": self.name}
        if self.reasoning_field == "content" and isinstance(body.get("input"), list):
            body["input"] = [_with_content(item) for item in body["input"]]
        return body

    def _headers(self) -> dict[str, str]:
        named = {"OpenAI-Organization": self.organization, "OpenAI-Project": self.project}
        return super()._headers() | {name: value for name, value in named.items() if value is not None}


def _reader(params: ResponsesParams, body: dict[str, Any]) -> Callable[[Any], Response]:
    def read(answer: Any) -> Response:
        response = _marked_if_cut(read_response(answer), body.get("max_output_tokens"))
        check_structured(params, response)
        return with_prefix_mark(params.items, response)

    return read


def _marked_if_cut(response: Response, limit: Any) -> Response:
    """The response, incomplete where it took as many tokens as it might and does not end with a whole call."""
    usage, output = response.usage, response.output
    if response.status != "completed" or usage is None or not isinstance(limit, int) or usage.output_tokens < limit:
        return response
    last = output[-1]
    if isinstance(last, FunctionCall) and object_arguments(last.arguments) == last.arguments:
        return response
    if getattr(last, "status", None) is not None:
        last = last.model_copy(update={"status": "incomplete"})
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return response.model_copy(update={**cut, "output": [*output[:-1], last]})


def request_body(params: ResponsesParams, defaults: dict[str, Any]) -> dict[str, Any]:
    """The request for `params`; the whole answer is asked for at once.

    Raises:
        Invalid: it asks to be answered in the background.
    """
    if (params.model_extra or {}).get("background"):
        raise Invalid("background: a rollout waits for its answers")
    given = {name: value for name, value in params.dump().items() if value is not None}
    body = defaults | given
    body.pop("stream", None)
    body.pop("stream_options", None)
    if not body.get("tools"):
        body = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    if isinstance(params.input, list):
        body["input"] = [_sent(item) for item in given.get("input", [])]
    return body


def _sent(item: dict[str, Any]) -> dict[str, Any]:
    """An input item as servers accept it: no nulls, nothing that only training needs, arguments that parse."""
    item = {name: value for name, value in item.items() if value is not None and name not in TRAINING_FIELDS}
    if item.get("type") == "function_call":
        item["arguments"] = object_arguments(item.get("arguments", ""))
    if item.get("role") == "assistant" and isinstance(item.get("content"), list):
        # some servers take an assistant message only in the whole form that they themselves put out
        item.setdefault("status", "completed")
        item["content"] = [_whole_part(part) for part in item["content"]]
    return item


def _with_content(item: dict[str, Any]) -> dict[str, Any]:
    """A reasoning item that tells its text as content; other items as they are."""
    summary = item.get("summary")
    if item.get("type") != "reasoning" or item.get("content") or not summary:
        return item
    text = reasoning_text(Reasoning.model_validate(item))
    return {**item, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _whole_part(part: dict[str, Any]) -> dict[str, Any]:
    part = {name: value for name, value in part.items() if value is not None}
    return {"annotations": [], **part} if part.get("type") == "output_text" else part


def read_response(answer: Any) -> Response:
    """The Response in a decoded answer.

    Raises:
        Invalid: it is none, or it is not finished.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
        raise Invalid(f"a Response has a list of output items, this is {answer!r:.200}")
    try:
        response = Response.model_validate({"status": "completed", **answer})
    except ValidationError as error:
        raise Invalid(f"it is no Response: {faults(error)}") from error
    if response.status not in _FINISHED:
        raise Invalid(f"its status is {response.status!r}: {(response.error or {}).get('message', 'no reason given')}")
    check_parts(response)
    if not response.output and response.status == "completed":
        raise Invalid("it is completed and has no output")
    return response
