"""Judge: what `verify` asks a model, by way of whoever called verify.

A sandbox has no network and no key, and gets none for this. Questions leave in the answer to `POST /verify`; answers
come back in the body of `POST /verify/answers` (see wire.py). So there is no socket for an agent to find, and none can
ask before verify has begun. Imported only where it is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Final, Literal, Protocol, overload

from pydantic import BaseModel, ValidationError

from gymbox_sandbox.problems import Invalid, Unavailable, faults

MOST_VOTES = 99
FAIL: Final[Any] = object()
"""What `tie` is by default: no majority is a failure."""
_VERDICTS = {"type": "object", "properties": {"winner": {"enum": ["A", "B", "tie"]}}, "required": ["winner"]}


class JudgeFailed(Unavailable):
    """The judge gave no answer that can be used. It ends the rollout as `judge_failed`, never as a score, also where
    `verify` catches it."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, rollout_kind="judge_failed")


class Asks(Protocol):
    """Gets an answer to one question: `{"params", "sample"}` in, `{"text", "value", "tokens"}` out."""

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]: ...


class Judge:
    """A model to ask from `verify`, as `self.judge`. Only an environment whose manifest says `judge: true` has one.

    Which model it is, whoever runs the environment says. Answers are remembered for a run, so verifying again gives
    the same. Every method raises JudgeFailed where it has no usable answer.
    """

    def __init__(self, line: Asks) -> None:
        self._line = line
        self._answers: list[dict[str, Any]] = []
        self._agreements: list[float] = []
        self.failed: JudgeFailed | None = None
        """The first failure; it stands, whatever `verify` makes of it."""
        self.interrupted = False
        """Whether `verify` was ended while it waited for an answer."""

    @overload
    async def ask[Answer: BaseModel](
        self, question: _Question, *, schema: type[Answer], votes: int = 1, on: str | None = None, tie: Any = FAIL
    ) -> Answer: ...

    @overload
    async def ask(
        self,
        question: _Question,
        *,
        schema: Mapping[str, Any] | None = None,
        votes: int = 1,
        on: str | None = None,
        tie: Any = FAIL,
    ) -> Any: ...

    async def ask(
        self,
        question: _Question,
        *,
        schema: Mapping[str, Any] | type[BaseModel] | None = None,
        votes: int = 1,
        on: str | None = None,
        tie: Any = FAIL,
    ) -> Any:
        """The answer: a string, or with `schema` the value that it describes.

        Args:
            question: a text, a list of messages, or Responses params (`input`, `instructions`, `temperature`, …).
                What an agent wrote belongs between the marks of `quoted`.
            schema: a JSON schema, or a pydantic model, of which an instance is returned.
            votes: how often the judge is asked; more than one, and the answer that more than half of them give counts.
            on: the field by which answers are compared, where the others are free text (reasons, say).
            tie: returned where no answer has a majority; by default that is a failure.

        Raises:
            JudgeFailed: no answer, none that fits the schema, or no majority.
        """
        answers = await self.poll(question, schema=schema, votes=votes)
        return answers[0] if votes == 1 else self._majority(answers, on, tie)

    async def poll(
        self, question: _Question, *, schema: Mapping[str, Any] | type[BaseModel] | None = None, votes: int
    ) -> list[Any]:
        """All answers to a question asked `votes` times, for a mean or a majority of your own; see `ask`.

        Raises:
            JudgeFailed: one of them is missing.
        """
        if not 1 <= votes <= MOST_VOTES:
            raise ValueError(f"votes must be from 1 to {MOST_VOTES}, not {votes}")
        params = _params(question, schema)
        return await _all([self._answer(params, schema, sample) for sample in range(votes)])

    async def compare(
        self, question: str, first: str, second: str, *, votes: int = 1
    ) -> Literal["first", "second", "tie"]:
        """Which of two texts is better, as `question` puts it.

        Judges prefer what they read first, so every vote is asked in both orders and counts for a text only if both
        say so; else it is a tie, as is a poll without a majority.

        Raises:
            JudgeFailed: an answer is missing.
        """
        forth, back = await _all(
            [
                self.poll(_pair(question, first, second), schema=_VERDICTS, votes=votes),
                self.poll(_pair(question, second, first), schema=_VERDICTS, votes=votes),
            ]
        )
        found: list[Any] = [
            {("A", "B"): "first", ("B", "A"): "second"}.get((one["winner"], other["winner"]), "tie")
            for one, other in zip(forth, back, strict=True)
        ]
        winner: Literal["first", "second", "tie"] = found[0] if votes == 1 else self._majority(found, None, "tie")
        return winner

    def metrics(self) -> dict[str, float]:
        """Answers, their tokens (of one that was remembered, those it took then), and the mean share of majorities."""
        if not self._answers:
            return {}
        found = {
            "judge_calls": float(len(self._answers)),
            "judge_tokens": float(sum(answer.get("tokens", 0) for answer in self._answers)),
        }
        if self._agreements:
            found["judge_agreement"] = round(sum(self._agreements) / len(self._agreements), 6)
        return found

    async def _answer(self, params: dict[str, Any], schema: Any, sample: int) -> Any:
        try:
            answer = await self._line.ask({"params": params, "sample": sample})
            self._answers.append(answer)
            if isinstance(schema, type) and issubclass(schema, BaseModel):
                return schema.model_validate(answer["value"])
            return answer["text"] if schema is None else answer["value"]
        except ValidationError as error:
            raise self._failure(f"the judge's answer is no {error.title}: {faults(error)}") from error
        except JudgeFailed as error:
            self.failed = self.failed or error
            raise
        except asyncio.CancelledError:
            self.interrupted = True
            raise

    def _majority(self, answers: list[Any], on: str | None, tie: Any) -> Any:
        keys = [_key(answer, on) for answer in answers]
        [(most, votes)] = Counter(keys).most_common(1)
        self._agreements.append(votes / len(keys))
        if votes * 2 > len(keys):
            return answers[keys.index(most)]
        if tie is FAIL:
            raise self._failure(f"no answer of the judge has a majority: {votes} of {len(keys)} votes agree")
        return tie

    def _failure(self, detail: str) -> JudgeFailed:
        failure = JudgeFailed(detail)
        self.failed = self.failed or failure
        return failure


class Line:
    """The questions that are on their way to whoever called verify."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[int, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._numbers = count(1)
        self._asked = asyncio.Event()

    def attend(self) -> None:
        """From now on there is someone who takes questions, in this event loop."""
        self._loop = asyncio.get_running_loop()

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """See `Asks`.

        Raises:
            JudgeFailed: there is no judge to ask, or it gave no usable answer.
            RuntimeError: it is asked from another event loop than the one that verify runs in.
        """
        if self._loop is None:
            raise JudgeFailed(
                "who called verify has no judge to ask: say `judge: true` in environment.yaml, and give the run one"
            )
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("to ask the judge, verify must be async, and ask in the event loop that it runs in")
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._open[number] = question, answer
        self._asked.set()
        try:
            found: dict[str, Any] = await answer
        finally:
            del self._open[number]
            if not self._open:
                self._asked.clear()
        if "failed" in found:
            raise JudgeFailed(str(found["failed"]))
        return found

    def take(self, body: bytes | bytearray) -> None:
        """Take the answers in a body; those to questions that are answered already are left aside.

        Raises:
            Invalid: it is no list of answers.
        """
        try:
            answers = {int(answer["number"]): answer for answer in json.loads(body)["answers"]}
        except (ValueError, KeyError, TypeError) as error:
            raise Invalid('/verify/answers takes {"answers": [{"number": n, …}]}') from error
        for number, answer in answers.items():
            _, waiting = self._open.get(number, (None, None))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    async def until_asked(self, verdict: asyncio.Task[Any]) -> list[dict[str, Any]]:
        """The questions without an answer, once there is one; none where the verdict came first."""
        while not verdict.done():
            asked = asyncio.create_task(self._asked.wait())
            try:
                await asyncio.wait({verdict, asked}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
            await asyncio.sleep(0)  # so that what is asked in the same breath goes along
            waiting = [
                {"number": number, **question}
                for number, (question, answer) in self._open.items()
                if not answer.done()
            ]
            if waiting and not verdict.done():
                return waiting
        return []


def quoted(text: str) -> str:
    """`text` between marks that it cannot contain, to be shown to a judge as something to read, not to obey."""
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<quoted-{mark}>\n{text}\n</quoted-{mark}>"


type _Question = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]


def _params(question: _Question, schema: Mapping[str, Any] | type[BaseModel] | None) -> dict[str, Any]:
    params: dict[str, Any] = dict(question) if isinstance(question, Mapping) else {"input": question}
    if schema is not None:
        if "text" in params:
            raise ValueError("give the form of the answer once: as `schema`, or as `text` of the params")
        form = schema.model_json_schema() if isinstance(schema, type) else schema
        params["text"] = {"format": {"type": "json_schema", "name": "judgement", "schema": form}}
    return params


def _pair(question: str, one: str, other: str) -> str:
    texts = f"Text A:\n{quoted(one)}\n\nText B:\n{quoted(other)}"
    return f"{question}\n\n{texts}\n\nWhich is better: A, B, or is it a tie?"


def _key(answer: Any, on: str | None) -> str:
    value = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer
    if on is not None:
        if not isinstance(value, dict) or on not in value:
            raise ValueError(f"answers have no field {on!r} to be compared by")
        value = value[on]
    return json.dumps(value.strip() if isinstance(value, str) else value, sort_keys=True)


async def _all(work: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of all, at once; where one fails, the others are given up."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
