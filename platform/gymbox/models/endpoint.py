"""Endpoint: a model behind someone's HTTP API, asked with bounded retries, each failure told by its kind."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import aiohttp
from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, field_validator

from gymbox import logs
from gymbox.errors import ErrorKind, ModelFailure, Problem, TimedOut
from gymbox.http import Answer, HttpClient, retry_after
from gymbox.models import Model
from gymbox.models.strict_json import strict_json

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
_UNPAID = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})


def _base_url(value: str) -> str:
    url = value.strip().rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError("base_url must start with http:// or https://")
    if "@" in url.split("/")[2]:
        raise ValueError("base_url must not hold a user or password; use api_key or headers")
    return url


BaseUrl = Annotated[str, AfterValidator(_base_url)]


class Endpoint(Model):
    """What the models behind an HTTP API share. A frozen component: see the fields."""

    base_url: BaseUrl
    """Address of the API, up to and with its version: `http://127.0.0.1:8000/v1`."""
    api_key: SecretStr | None = None
    """Sent as bearer token; leave it out where the endpoint wants none."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further request headers; their values are treated as secrets."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Defaults of every request (`temperature`, `reasoning`, …) in the Responses format; what a row sets wins."""
    timeout: float = Field(600, gt=0)
    """Seconds for one try."""
    max_concurrency: int = Field(256, ge=1)
    """Calls in flight at once; the others wait."""
    pause: float = Field(0.5, gt=0)
    """Seconds before the second try; doubled each time, up to 30."""

    _slots: asyncio.Semaphore | None = PrivateAttr(None)
    _told: set[ErrorKind] = PrivateAttr(default_factory=set)

    @field_validator("api_key")
    @classmethod
    def _one_line(cls, value: SecretStr | None) -> SecretStr | None:
        # a key read from a file often brings the line's end, which no header may hold
        return None if value is None else SecretStr(value.get_secret_value().strip())

    async def open(self) -> None:
        self._slots = asyncio.Semaphore(self.max_concurrency)

    async def close(self) -> None:
        self._slots = None

    async def post[Found](
        self, http: HttpClient, path: str, body: dict[str, Any], read: Callable[[Any], Found]
    ) -> Found:
        """What `read` makes of the decoded answer to `body`.

        A failed try is repeated as `TRIES` says, after a growing pause or the endpoint's Retry-After. The first
        failure of each kind is logged at once, so nobody waits in the dark.

        Args:
            read: raises Problem where the answer is not usable.

        Raises:
            ModelFailure: no usable answer; its text names the model, the address, what came and what to check.
        """
        if self._slots is None:
            await self.open()
        assert self._slots is not None
        failures: Counter[ErrorKind] = Counter()
        while True:
            try:
                async with self._slots:
                    return await self._try(http, f"{self.base_url}{path}", body, read)
            except ModelFailure as failure:
                kind = failure.rollout_kind
                failures[kind] += 1
                final = failures[kind] >= TRIES[kind]
                self._tell(failure, final)
                if final:
                    raise
                grown = min(self.pause * 2 ** (failures.total() - 1), LONGEST_PAUSE)
                wait = min(failure.retry_after, LONGEST_PAUSE) if failure.retry_after is not None else grown
            await asyncio.sleep(wait * random.uniform(1.0, 1.25))

    async def _try[Found](
        self, http: HttpClient, url: str, body: dict[str, Any], read: Callable[[Any], Found]
    ) -> Found:
        try:
            answer = await http.request(
                "POST", url, data=_encoded(body), headers=self._headers(), timeout=self.timeout, retry=False
            )
        except TimedOut as error:
            raise self._failure(ErrorKind.MODEL_TIMED_OUT, url, f"did not answer within {self.timeout:g} s") from error
        except Problem as error:
            broken = isinstance(error.__cause__, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError)
            what = "broke off" if broken else "could not be reached"
            text = f"{what} ({_cause(error)})"
            raise self._failure(ErrorKind.MODEL_UNAVAILABLE, url, text) from error
        if answer.status != 200:
            raise self._refused(answer)
        try:
            found = _decoded(answer.body)
        except (ValueError, RecursionError) as error:
            shown = f"{answer.body[:200].decode(errors='replace')!r}" if answer.body else "nothing"
            raise self._failure(ErrorKind.MODEL_BAD_RESPONSE, url, f"answered {shown}, which is no JSON") from error
        if isinstance(found, dict) and found.get("error") and not found.get("output"):
            code, text = _error_of(found)
            kind = ErrorKind.MODEL_RATE_LIMITED if "rate_limit" in code else ErrorKind.MODEL_UNAVAILABLE
            raise self._failure(kind, url, f"answered with an error: {text}")
        try:
            return read(found)
        except ModelFailure:
            raise
        except Problem as error:
            text = f"gave an unusable answer: {error.detail}"
            raise self._failure(ErrorKind.MODEL_BAD_RESPONSE, url, text) from error

    def _headers(self) -> dict[str, str]:
        sent = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            sent["Authorization"] = f"Bearer {self.api_key.get_secret_value()}"
        return sent | {name: value.get_secret_value() for name, value in self.headers.items()}

    def _refused(self, answer: Answer) -> ModelFailure:
        body: Any = None
        try:
            body = _decoded(answer.body)
            code, text = _error_of(body)
        except (ValueError, RecursionError):
            code, text = "", repr(answer.body[:200].decode(errors="replace")) if answer.body else "no body"
        kind = _told_kind(body) or _kind_of(answer.status)
        if code in _UNPAID:
            kind = ErrorKind.MODEL_UNAUTHORIZED
        wait = retry_after(answer.headers)
        return self._failure(kind, answer.url, f"answered {answer.status}: {text}", retry_after=wait)

    def _failure(self, kind: ErrorKind, url: str, text: str, *, retry_after: float | None = None) -> ModelFailure:
        detail = f"model {self.name!r} at {url} {text}; {CHECK[kind]}"
        for secret in [self.api_key, *self.headers.values()]:
            # an endpoint may repeat what it was sent
            if secret is not None and len(secret.get_secret_value()) > 3:
                detail = detail.replace(secret.get_secret_value(), "***")
        # the text goes into the results, too
        return ModelFailure(kind, logs.redact(detail), retry_after=retry_after)

    def _tell(self, failure: ModelFailure, final: bool) -> None:
        if failure.rollout_kind not in self._told:
            self._told.add(failure.rollout_kind)
            more = "giving up" if final else "trying again"
            log.warning("%s (%s; %s)", failure.detail, failure.rollout_kind.value, more)


def _kind_of(status: int) -> ErrorKind:
    if status in (401, 402, 403, 407):
        return ErrorKind.MODEL_UNAUTHORIZED
    if status == 429:
        return ErrorKind.MODEL_RATE_LIMITED
    if status in (408, 504):
        return ErrorKind.MODEL_TIMED_OUT
    if status in (409, 425) or status >= 500:
        return ErrorKind.MODEL_UNAVAILABLE
    return ErrorKind.MODEL_REFUSED_REQUEST if status >= 400 else ErrorKind.MODEL_BAD_RESPONSE


def _told_kind(body: Any) -> ErrorKind | None:
    """The kind that a model served by gymbox gives with its refusal."""
    told = body.get("rollout_kind") if isinstance(body, dict) else None
    return next((kind for kind in TRIES if kind.value == told), None)


def _error_of(body: Any) -> tuple[str, str]:
    """Code and sentence of an error body, in any of the shapes that endpoints use."""
    found = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(found, dict):
        return "", f"{found!r:.300}"
    code = found.get("code") or found.get("type") or ""
    text = found.get("message") or found.get("detail") or found
    return str(code), text[:500] if isinstance(text, str) else f"{text!r:.500}"


def _cause(error: Problem) -> str:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}" if cause is not None else error.detail


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _decoded(body: bytes) -> Any:
    """Strict JSON: no NaN, and no half of a surrogate pair, which could not be written to a record."""
    found = strict_json(body)
    return _whole(found) if b"\\ud" in body.lower() else found


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(part) for part in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(part) for name, part in value.items()}
    return value
