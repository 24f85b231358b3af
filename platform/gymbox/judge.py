"""Judge: the model that verifiers ask, on the side of whoever calls verify.

What a sandbox asks is not trusted: a question is text and a few sampling fields, never tools, files or addresses that
a provider would fetch; each verify has limits; and an answer that does not fit its schema is no answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import Message, Response, ResponsesParams
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymbox import logs
from gymbox.environment import JudgeLimits
from gymbox.errors import ErrorKind, Invalid, JudgeFailed, ModelFailure, Problem
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.capture import Capture, Mode, Recording
from gymbox.models.cassettes import JUDGE_CALLS
from gymbox.models.limits import Budget
from gymbox.models.metered import CallMeter, MeteredModel
from gymbox.models.strict_json import strict_json
from gymbox.models.structured import fault_in, wanted_schema

ANSWER = 4096
"""Tokens that an answer is thought to take where the question sets no `max_output_tokens`, until others have told."""
LETTERS_A_TOKEN = 4
"""Of a question, about."""
TRIES = 3
"""How often one question may be answered with garbage."""
REMEMBERED, REMEMBERED_BYTES = 20_000, 64 * 1024 * 1024
"""Answers that a judge remembers, and their size."""
ALLOWED = frozenset(
    {"input", "instructions", "text", "temperature", "top_p", "max_output_tokens", "reasoning", "metadata"}
)
PARTS = ("input_text", "output_text", "text")
OF_PART = frozenset({"type", "text", "annotations", "logprobs", "cache_control"})
OF_MESSAGE = frozenset({"cache_control"})
"""Beside what every message has."""
WIDENING = ("extra_body", "chat_template_kwargs")
"""Of a request's metadata, what becomes fields of the request to the endpoint, whatever they are."""
NAME = "judge"
"""Of the model server behind a proxy that judges."""
log = logging.getLogger(__name__)


class Judge:
    """A model for verifiers, and its answers so far, so that to verify again is to get the same.

    Answers are kept by the whole of what was asked, for as long as this lives, and only here: a sandbox can name none.
    Used as `async with`: the model is open within the block.
    """

    def __init__(self, model: Model, http: HttpClient) -> None:
        self.model = model
        self.http = http
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()
        self._size = 0
        self._capture: Capture | None = None

    async def __aenter__(self) -> Self:
        await self.model.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.model.close()

    def record(self, capture: Capture) -> None:
        """From now on have what it is asked written there, each call with its rollout's id; also what it remembers,
        since a rollout's record is to have all that its reward depends on."""
        self._capture = capture

    def metered(self, meter: CallMeter) -> None:
        """From now on have what it is asked counted there."""
        self.model = MeteredModel.of(self.model, meter)

    def hearing(self, rollout: str, limits: JudgeLimits, gold: Any = None) -> Hearing:
        """One verify, which belongs to `rollout`; `gold` are the row's `gold_judgements`, which the scripted model
        replays."""
        return Hearing(self, rollout, limits, gold or [])

    def recall(self, key: bytes) -> _Answer | None:
        """The answer that was given before."""
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def remember(self, key: bytes, answer: _Answer) -> _Answer:
        """Keep an answer, unless another verify that asked the same at the same time had one first; the one that
        counts. The ones unused for longest go."""
        if (kept := self.recall(key)) is not None:
            return kept
        self._known[key] = answer
        self._size += len(answer.text)
        while len(self._known) > REMEMBERED or self._size > REMEMBERED_BYTES:
            _, dropped = self._known.popitem(last=False)
            self._size -= len(dropped.text)
        return answer

    async def recording(
        self, params: ResponsesParams, call: Call, about: dict[str, Any]
    ) -> AbstractContextManager[Recording | None]:
        """A call, to be left when it is over; None where it is not recorded."""
        if self._capture is None or not self._capture.records(call.rollout):
            return nullcontext()
        name, price = self.model.name, self.model.price
        return await self._capture.recording("responses", name, price, params.dump, call, judge=about)


class Hearing:
    """What one verify asks."""

    def __init__(self, judge: Judge, rollout: str, limits: JudgeLimits, gold: list[dict[str, Any]]) -> None:
        self._judge = judge
        self._rollout = rollout
        self._limits = limits
        self._gold = gold
        self._budget = Budget(limits.tokens)
        self._calls = self._bytes = self._longest = 0

    async def answers(self, body: bytes) -> list[dict[str, Any]]:
        """The answers to all questions in a sandbox's answer; see `gymbox_sandbox.wire`.

        Raises:
            JudgeFailed: one has none; the text says why.
        """
        try:
            questions = _Questions.model_validate_json(body).questions
        except ValidationError as error:
            raise JudgeFailed(f"the sandbox asks the judge in a form that is none: {faults(error)}") from error
        tasks = [asyncio.create_task(self._answer(question)) for question in questions]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, question: _Question) -> dict[str, Any]:
        name, seconds = self._judge.model.name, self._limits.timeout
        try:
            params = params_of(question.params)
            self._bytes += len(json.dumps(question.params))
            if self._bytes > self._limits.kilobytes * 1024:
                raise Invalid(f"verify asked more than {self._limits.kilobytes} KiB (judge.kilobytes)")
            async with asyncio.timeout(seconds):
                return await self._usable(question, params)
        except TimeoutError as error:
            raise JudgeFailed(f"the judge {name!r} did not answer within {seconds:g} s (judge.timeout)") from error
        except JudgeFailed:
            raise
        except Problem as error:
            raise JudgeFailed(f"the judge {name!r} cannot answer: {error.detail}") from error

    async def _usable(self, question: _Question, params: ResponsesParams) -> dict[str, Any]:
        schema, fault = wanted_schema(params), ""
        for attempt in range(TRIES):
            self._calls += 1
            if self._calls > self._limits.calls:
                raise Invalid(f"verify asked more than {self._limits.calls} times (judge.calls)")
            try:
                key = _key(question, attempt)
                about = {"question": question.number, "vote": question.sample, "attempt": attempt}
                answer = self._judge.recall(key)
                if answer is None:
                    answer = await self._asked(params, schema, key, about)
                else:
                    await self._recalled(params, answer, about)
                value = None if schema is None else _value(answer.text, schema)
            except ModelFailure as failure:
                if failure.rollout_kind is not ErrorKind.MODEL_BAD_RESPONSE:
                    raise
                fault = failure.detail
            except _Garbled as garbled:
                fault = str(garbled)
            else:
                found = {"number": question.number, "text": answer.text, "tokens": answer.tokens}
                return found if schema is None else {**found, "value": value}
            log.info("rollout %s: an answer of the judge is not usable: %s", self._rollout, fault)
        raise JudgeFailed(f"the judge {self._judge.model.name!r} gave no usable answer in {TRIES} tries: {fault}")

    async def _recalled(self, params: ResponsesParams, answer: _Answer, about: dict[str, Any]) -> None:
        """Have it recorded that this was answered from memory."""
        call = Call(http=self._judge.http, rollout=self._rollout, turn=self._calls - 1)
        with await self._judge.recording(params, call, {**about, "remembered": True}) as recording:
            if recording is not None:
                message = {"type": "message", "role": "assistant", "content": answer.text}
                recording.answered(lambda: {"status": "completed", "output": [message]})

    async def _asked(self, params: ResponsesParams, schema: Any, key: bytes, about: dict[str, Any]) -> _Answer:
        """The answer that counts for this question.

        Raises:
            ModelFailure: as the model.
            _Garbled: it is no answer that can be used.
        """
        turn, prompt = self._calls - 1, len(_text_of(params)) // LETTERS_A_TOKEN

        def wanted() -> int:
            return prompt + (params.max_output_tokens or self._longest or ANSWER)

        held, tokens = await self._budget.hold(wanted), 0
        try:
            if held <= prompt:
                raise Invalid(f"verify used up the {self._limits.tokens} tokens of its judge (judge.tokens)")
            asked = params if held == wanted() else params.model_copy(update={"max_output_tokens": held - prompt})
            call = Call(http=self._judge.http, rollout=self._rollout, turn=turn, gold=self._replies(params))
            with await self._judge.recording(asked, call, about) as recording:
                response = await self._judge.model.responses(asked, recording.call if recording else call)
                if recording is not None:
                    recording.answered(response.dump)
                if response.usage is not None:
                    tokens = response.usage.total_tokens
                    self._longest = max(self._longest, response.usage.output_tokens)
                answer = _Answer(response.output_text, tokens)
                fault = about["unusable"] = self._fault_in(response, schema)
                if fault is None:
                    taken = self._judge.remember(key, answer)
                    if taken.text != answer.text:
                        about["instead"] = taken.text
        finally:
            self._budget.settle(held, tokens)
        if fault is not None:  # out here: the call itself has not failed
            raise _Garbled(fault)
        return taken

    def _fault_in(self, response: Response, schema: Any) -> str | None:
        """Why an answer cannot be used."""
        text = response.output_text
        if response.status == "incomplete" or not text.strip():
            return f"it {_ending(response)}"
        if len(text) > self._limits.kilobytes * 1024:
            return f"it has more than {self._limits.kilobytes} KiB (judge.kilobytes)"
        try:
            if schema is not None:
                _value(text, schema)
        except _Garbled as garbled:
            return str(garbled)
        return None

    def _replies(self, params: ResponsesParams) -> list[list[dict[str, Any]]] | None:
        """What the scripted model says to it: as the first gold judgement of which the question has the words."""
        asked = _text_of(params)
        for judgement in self._gold:
            if judgement["contains"] in asked:
                says = judgement["says"]
                return [[{"type": "message", "content": says if isinstance(says, str) else json.dumps(says)}]]
        return [] if self._gold else None


class _Garbled(Exception):
    """It answered, with what cannot be used."""


class _Answer(NamedTuple):
    text: str
    tokens: int


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    params: dict[str, Any]
    sample: int = Field(ge=0, le=10_000)
    """Tells apart the votes on one question."""


class _Questions(BaseModel):
    questions: list[_Question] = Field(min_length=1, max_length=10_000)  # to ask nothing again and again has no limit


def params_of(asked: dict[str, Any]) -> ResponsesParams:
    """The params of a question from a sandbox.

    Raises:
        Invalid: they hold what no verifier may ask for, by name.
    """
    if unknown := sorted(asked.keys() - ALLOWED):
        raise Invalid(
            f"a verifier may not set {', '.join(unknown)} of its question; it may: {', '.join(sorted(ALLOWED))}"
        )
    try:
        params = ResponsesParams.model_validate(asked)
    except ValidationError as error:
        raise Invalid(f"its question is wrong: {faults(error)}") from error
    if not params.items:
        raise Invalid("its question has no input")
    for name in WIDENING:
        if name in (params.metadata or {}):
            raise Invalid(f"a verifier may not set metadata.{name} of its question")
    for item in params.items:
        if not isinstance(item, Message):
            raise Invalid(f"a question to a judge is made of messages, and this has {item.type!r}")
        if beside := sorted((item.model_extra or {}).keys() - OF_MESSAGE):
            raise Invalid(f"a question to a judge is text, and this has {beside[0]!r:.60} beside it")
        for part in item.content if isinstance(item.content, list) else ():
            if part.get("type") not in PARTS or not isinstance(part.get("text"), str):
                raise Invalid(f"a question to a judge is text, and this has {part.get('type')!r}")
            if beside := sorted(part.keys() - OF_PART):
                raise Invalid(f"a question to a judge is text, and this has {beside[0]!r:.60} beside it")
    return params


@asynccontextmanager
async def judge_of(model: Model | None, http: HttpClient) -> AsyncIterator[Judge | None]:
    """A judge that is this model, open within the block; None where there is none."""
    if model is None:
        yield None
        return
    async with Judge(model, http) as judge:
        yield judge


@asynccontextmanager
async def recorded(judge: Judge | None, run: Path, *, mode: Mode, rate: float) -> AsyncIterator[None]:
    """Within the block, what the judge is asked is written into the run's folder, as the calls of its models are."""
    if judge is None or mode == "off":
        yield
        return
    async with Capture(run / JUDGE_CALLS, mode=mode, rate=rate, secrets=logs.hidden()) as capture:
        judge.record(capture)
        yield


async def judge_of_proxy(proxy: str, token: str, http: HttpClient) -> Judge:
    """The model server that a proxy serves as /models/judge.

    Raises:
        JudgeFailed: it serves none, or it does not answer.
    """
    from gymbox.models.openai import OpenAIModel

    base = f"{proxy.rstrip('/')}/models/{NAME}/v1"
    try:
        found = await http.json("GET", f"{base}/models", headers={"Authorization": f"Bearer {token}"}, timeout=30)
        names = [model["id"] for model in found["data"]]
        name = NAME if NAME in names else names[0]
        return Judge(OpenAIModel.model_validate({"name": name, "base_url": base, "api_key": token}), http)
    except Problem as error:
        raise JudgeFailed(
            f"the proxy at {proxy} has no judge ({error.detail}): start it with --model {NAME}=URL, or add judge=…"
        ) from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise JudgeFailed(f"{base}/models names no model") from error


def _text_of(params: ResponsesParams) -> str:
    return "\n".join(item.text for item in params.items if isinstance(item, Message))


def _key(question: _Question, attempt: int) -> bytes:
    asked = json.dumps([question.params, question.sample, attempt], sort_keys=True)
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()


def _value(text: str, schema: Any) -> Any:
    try:
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise _Garbled(f"JSON was asked for, and it said {text!r:.200}") from error
    if fault := fault_in(value, schema):
        raise _Garbled(f"it does not fit the schema: {fault}")
    return value


def _ending(response: Response) -> str:
    if response.status == "incomplete":
        return f"was cut short: {(response.incomplete_details or {}).get('reason', 'no reason given')}"
    return "has no text"
