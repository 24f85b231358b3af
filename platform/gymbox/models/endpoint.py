"""Endpoint: a model behind someone's HTTP API, asked with bounded retries, each failure told by its kind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, field_validator, model_validator

from gymbox import logs
from gymbox.errors import ErrorKind, ModelFailure, Problem
from gymbox.http import HttpClient
from gymbox.models import Call, Model
from gymbox.models.exchange import ByteStream, Exchange, Fault, tokens_in
from gymbox.models.limits import Rates
from gymbox.models.probes import LONGEST_PROBE, Probes, status_of, until_one_answers
from gymbox.models.replicas import Address, Place, Pool, Replica, Try
from gymbox.models.strict_json import json_bytes
from gymbox.models.turns import Turn, tokens_of
from gymbox.redaction import without

log = logging.getLogger(__name__)

TRIES = {
    ErrorKind.MODEL_UNAUTHORIZED: 1,
    ErrorKind.MODEL_REFUSED_REQUEST: 1,
    ErrorKind.MODEL_BAD_RESPONSE: 2,
    ErrorKind.MODEL_TIMED_OUT: 2,
    ErrorKind.MODEL_UNAVAILABLE: 4,
    ErrorKind.MODEL_RATE_LIMITED: 8,
}
"""How often one call may fail in each way before it is given up."""
ELSEWHERE = frozenset({ErrorKind.MODEL_UNAUTHORIZED, ErrorKind.MODEL_UNAVAILABLE, ErrorKind.MODEL_RATE_LIMITED})
"""Kinds for which each further replica allows a further try."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries, also where the endpoint's Retry-After says more."""
CHECK = {
    ErrorKind.MODEL_UNAUTHORIZED: "check the model's api_key",
    ErrorKind.MODEL_REFUSED_REQUEST: "check the model's name, its base_url and the request's fields",
    ErrorKind.MODEL_BAD_RESPONSE: "check that base_url is the API's own address (it often ends in /v1)",
    ErrorKind.MODEL_TIMED_OUT: "raise the model's timeout, or lower its max_concurrency",
    ErrorKind.MODEL_UNAVAILABLE: "check that the server runs and that base_url is right",
    ErrorKind.MODEL_RATE_LIMITED: "lower the model's max_concurrency or the runner's concurrency",
}


def _addresses(value: str | list[str]) -> str | list[str]:
    if isinstance(value, list) and not value:
        raise ValueError("base_url must name at least one address")
    return value


BaseUrl = Annotated[Address | list[Address], AfterValidator(_addresses)]
"""One address, or several that serve the same model."""


class Endpoint(Model):
    """What the models behind an HTTP API share. A frozen component: see the fields."""

    base_url: BaseUrl | None = None
    """Address of the API, up to and with its version: `http://127.0.0.1:8000/v1`. A list where several servers serve
    the same model: a call goes to the least busy one, the calls of one rollout to the same."""
    replicas: list[Replica] = Field(default_factory=list)
    """In the place of `base_url`, where the servers differ: each with its `url` and, where wanted, `api_key`,
    `weight`, `max_concurrency`, `requests_per_minute` and `tokens_per_minute`."""
    api_key: SecretStr | None = None
    """Sent as bearer token; leave it out where the endpoint wants none."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further request headers; their values are treated as secrets."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Defaults of every request (`temperature`, `reasoning`, …) in the Responses format; what a row sets wins."""
    timeout: float = Field(600, gt=0)
    """Seconds for one try; of a stream: until its first event, and from each piece to the next."""
    deadline: float = Field(3600, gt=0)
    """Seconds for one call in all: its tries, the pauses between them and the wait for its turn."""
    max_concurrency: int = Field(256, ge=1)
    """Calls in flight at once; the others wait."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Calls that may begin in a minute; the others wait."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Tokens of requests and answers in a minute. Those of a request are guessed from its length until the answer
    tells them."""
    pause: float = Field(0.5, gt=0)
    """Seconds before the second try; doubled each time, up to 30."""
    probe_interval: float = Field(5, ge=0)
    """Seconds between two looks (by the API's list of models) at a replica that was ejected, so that it is back before
    a call has to try it. 0: calls try it."""

    _models_path: ClassVar[str] = "/models"
    """Where the API lists its models; "" where it does not."""
    _pool: Pool | None = PrivateAttr(None)
    _probes: Probes = PrivateAttr()
    _told: set[ErrorKind] = PrivateAttr(default_factory=set)

    @field_validator("api_key")
    @classmethod
    def _one_line(cls, value: SecretStr | None) -> SecretStr | None:
        # a key read from a file often brings the line's end, which no header may hold
        return None if value is None else SecretStr(value.get_secret_value().strip())

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        if not self.base_url and not self.replicas:
            raise ValueError("base_url is missing: the address of the API, such as http://127.0.0.1:8000/v1")
        return self

    async def open(self) -> None:
        replicas = self._replicas()
        rates = Rates(self.requests_per_minute, self.tokens_per_minute)
        # the first time, a replica is left alone for about as long as its three failures took
        self._pool = Pool(replicas, max_concurrency=self.max_concurrency, pause=8 * self.pause, rates=rates)
        self._probes = Probes(self._pool, self._probe, self.probe_interval)

    async def ready(self, http: HttpClient, timeout: float) -> None:
        if not self._models_path:
            return
        replicas = self._replicas()
        why = await until_one_answers(
            {each.url: partial(self._status, http, each) for each in replicas},
            timeout,
            f"model {self.name!r}",
            self.redacted,
        )
        if why:
            url = self._url(replicas[0].url, self._models_path)
            raise self._failure(Fault(ErrorKind.MODEL_UNAVAILABLE, why), url)

    async def _status(self, http: HttpClient, replica: Replica, seconds: float) -> int:
        url, headers = self._url(replica.url, self._models_path), self._sent_headers(replica, "application/json")
        return await status_of(http, url, headers, seconds)

    async def _probe(self, http: HttpClient, place: Place) -> int | None:
        return await self._status(http, place.replica, LONGEST_PROBE) if self._models_path else None

    def _replicas(self) -> list[Replica]:
        urls = [self.base_url] if isinstance(self.base_url, str) else self.base_url or []
        return self.replicas or [Replica(url=url) for url in urls]

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()
            await self._probes.close()

    async def post[Found](
        self,
        http: HttpClient,
        path: str,
        body: dict[str, Any],
        read: Callable[[Any], Found],
        *,
        call: Call | None = None,
    ) -> Found:
        """What `read` makes of the decoded answer to `body`.

        A failed try is repeated as `TRIES` says, elsewhere at once where another replica is well, else after a growing
        pause or the endpoint's Retry-After. The first failure of each kind is logged at once, so nobody waits in the
        dark.

        Args:
            read: raises Problem where the answer is not usable.
            call: its rollout stays with one replica; its tries are noted in it.

        Raises:
            ModelFailure: no usable answer; its text names the model, the address, what came and what to check.
        """

        async def usable(turn: Turn) -> Found:
            answer = await turn.exchange.whole()
            turn.settle(tokens_in(answer))
            return _read(read, answer)

        found, turn = await self._answered(http, path, body, call, usable, accept="application/json")
        turn.over()
        return found

    @asynccontextmanager
    async def open_stream(
        self,
        http: HttpClient,
        path: str,
        body: dict[str, Any],
        *,
        call: Call | None = None,
        check: Callable[[Any], object] | None = None,
    ) -> AsyncIterator[ByteStream]:
        """The answer to `body` as it comes, from its first event on; leaving the block ends the call at the endpoint.

        Until the first event is there, a failed try is repeated as in `post`; an answer that begins with an error is
        such a failure, too. Then nothing is repeated: iterating raises ModelFailure where the stream breaks off, stays
        silent for `timeout`, goes on past `deadline` or grows too large. `ByteStream.whole` has the decoded answer
        where the endpoint does not stream.

        Args:
            check: raises Problem where a whole answer is not usable.

        Raises:
            ModelFailure: as `post`.
        """

        async def begun(turn: Turn) -> Any:
            whole = await turn.exchange.first_event()
            if whole is not None and check is not None:
                _read(check, whole)
            return whole

        whole, turn = await self._answered(http, path, body, call, begun, accept="text/event-stream")

        def broken(fault: Fault) -> ModelFailure:
            turn.pool.went_wrong(turn.place, fault.kind)
            self._probes.watch(turn.place, http)
            turn.tried.kind = fault.kind.value
            failure = self._failure(fault, turn.exchange.url)
            self._tell(failure, final=True)
            return failure

        stream = ByteStream(turn.exchange, whole, broken, count_tokens=turn.counts_tokens)
        try:
            yield stream
        finally:
            turn.settle(tokens_in(whole) if whole is not None else stream.tokens)
            turn.over()

    async def _answered[Found](
        self,
        http: HttpClient,
        path: str,
        body: dict[str, Any],
        call: Call | None,
        usable: Callable[[Turn], Awaitable[Found]],
        *,
        accept: str,
    ) -> tuple[Found, Turn]:
        """What `usable` makes of an answer, and the turn in which it came: end that."""
        pool = self._pool  # once, since pydantic makes private attributes slow to read
        if pool is None:
            await self.open()
            pool = self._pool
        assert pool is not None
        deadline = asyncio.get_running_loop().time() + self.deadline
        failures: Counter[ErrorKind] = Counter()
        failed_at: set[Place] = set()
        failure: ModelFailure | None = None
        while True:
            try:
                turn = await self._turn(pool, path, body, call, failed_at, deadline)
            except TimeoutError as error:
                raise failure or self._out_of_turn() from error
            try:
                return await self._try(http, turn, usable, accept), turn
            except ModelFailure as raised:
                failure, kind = raised, raised.rollout_kind
                rest = None if failure.retry_after is None else min(failure.retry_after, LONGEST_PAUSE)
                # before the turn is over, lest the next one goes there, too
                pool.went_wrong(turn.place, kind, rest)
                self._probes.watch(turn.place, http)
                turn.over()
                failures[kind] += 1
                failed_at.add(turn.place)
                wait = min(self.pause * 2 ** (failures.total() - 1), LONGEST_PAUSE) if rest is None else rest
                most = TRIES[kind]
                if kind in ELSEWHERE:
                    most += len(pool.places) - 1
                    wait = 0.0 if pool.others_are_well(failed_at) else wait
                wait *= random.uniform(1.0, 1.25)
                final = failures[kind] >= most or asyncio.get_running_loop().time() + wait >= deadline
                self._tell(failure, final)
                if final:
                    raise
            except BaseException:
                turn.over()
                raise
            await asyncio.sleep(wait)

    async def _turn(
        self, pool: Pool, path: str, body: dict[str, Any], call: Call | None, avoid: set[Place], deadline: float
    ) -> Turn:
        """
        Raises:
            TimeoutError: it did not come until the deadline.
        """
        rollout = call.rollout if call is not None else ""
        place = pool.take_now(rollout, avoid)
        if place is None:
            # only here, since a timer costs more than a turn that nobody need wait for
            async with asyncio.timeout_at(deadline):
                place = await pool.take(rollout, avoid)
        try:
            # made only now, so that thousands that wait hold no second copy
            sent = json_bytes(body)
            rates = [rates for rates in (pool.rates, place.rates) if rates.bound]
            if rates:
                async with asyncio.timeout_at(deadline):
                    for rate in rates:
                        await rate.spend(tokens_of(sent))
            left = deadline - asyncio.get_running_loop().time()
            exchange = self._exchange(place.replica, path, body, seconds=min(self.timeout, left), until=deadline)
            tried = Try(place.replica.url)
        except BaseException:
            pool.leave(place)
            raise
        if call is not None and call.tries is not None:
            call.tries.append(tried)
        return Turn(pool, place, exchange, sent, rates, tried)

    async def _try[Found](
        self, http: HttpClient, turn: Turn, usable: Callable[[Turn], Awaitable[Found]], accept: str
    ) -> Found:
        loop = asyncio.get_running_loop()
        began = loop.time()
        turn.tried.kind = "cancelled"
        try:
            await turn.exchange.send(http, turn.sent, self._sent_headers(turn.place.replica, accept))
            found = await usable(turn)
        except Fault as fault:
            turn.tried.kind = fault.kind.value
            raise self._failure(fault, turn.exchange.url) from fault
        except ModelFailure as failure:
            turn.tried.kind = failure.rollout_kind.value
            raise
        finally:
            turn.tried.status = turn.exchange.status
            turn.tried.seconds = loop.time() - began
        turn.tried.kind = None
        turn.pool.went_well(turn.place)
        return found

    def _sent_headers(self, replica: Replica, accept: str) -> dict[str, str]:
        key = replica.api_key or self.api_key
        sent = {"Content-Type": "application/json", "Accept": accept}
        if key is not None:
            sent |= self._key_headers(key.get_secret_value())
        return sent | self._headers()

    def _exchange(
        self, replica: Replica, path: str, body: dict[str, Any], *, seconds: float, until: float
    ) -> Exchange:
        """How a request is made: see `Exchange` for `seconds` and `until`."""
        return Exchange(self._url(replica.url, path), seconds=seconds, idle=self.timeout, until=until)

    def _url(self, base_url: str, path: str) -> str:
        """Where a request goes."""
        return f"{base_url}{path}"

    def _key_headers(self, key: str) -> dict[str, str]:
        """How the key is shown to the endpoint."""
        return {"Authorization": f"Bearer {key}"}

    def _headers(self) -> dict[str, str]:
        """Headers of every request beside the key's; they win."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}

    def _secrets(self) -> list[SecretStr | None]:
        return [self.api_key, *self.headers.values(), *(replica.api_key for replica in self.replicas)]

    def _failure(self, fault: Fault, url: str) -> ModelFailure:
        detail = f"model {self.name!r} at {url} {fault.text}; {CHECK[fault.kind]}"
        return ModelFailure(fault.kind, self.redacted(detail), retry_after=fault.retry_after)

    def redacted(self, text: str) -> str:
        """A failure's text without this model's secrets, however they are encoded: an endpoint may repeat what it was
        sent, and the text goes to callers and into the results."""
        for secret in self._secrets():
            if secret is not None and len(secret.get_secret_value()) > 3:
                text = without(text, secret.get_secret_value())
        return logs.redact(text)

    def _out_of_turn(self) -> ModelFailure:
        text = (
            f"model {self.name!r}: its turn did not come within deadline={self.deadline:g} s; raise its deadline, "
            f"max_concurrency ({self.max_concurrency}) or rates, or ask fewer at once"
        )
        return ModelFailure(ErrorKind.MODEL_TIMED_OUT, text)

    def _tell(self, failure: ModelFailure, final: bool) -> None:
        if failure.rollout_kind not in self._told:
            self._told.add(failure.rollout_kind)
            more = "giving up" if final else "trying again"
            log.warning("%s (%s; %s)", failure.detail, failure.rollout_kind.value, more)


def _read[Found](read: Callable[[Any], Found], answer: Any) -> Found:
    try:
        return read(answer)
    except ModelFailure:
        raise
    except Problem as error:
        raise Fault(ErrorKind.MODEL_BAD_RESPONSE, f"gave an unusable answer: {error.detail}") from error
