"""Replicas: the addresses behind one model, which of them a call goes to, and which are left alone for a while."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from gymbox.errors import ErrorKind
from gymbox.models.limits import Rates

log = logging.getLogger(__name__)

FAULTS = 3
"""Failures in a row after which a replica is left alone."""
LONGEST_EJECTION = 120.0
"""Seconds."""
AT_FAULT = frozenset({ErrorKind.MODEL_UNAVAILABLE, ErrorKind.MODEL_TIMED_OUT, ErrorKind.MODEL_UNAUTHORIZED})
"""Kinds that speak against a replica; the others are about the request, the answer, or how much is asked of it."""
REMEMBERED = 65_536
"""Rollouts whose replica is remembered; the one heard of longest ago is forgotten first."""
BUSIER, SLACK = 2.0, 4.0
"""A rollout leaves its replica for a call while that one has this many times, and so many, more calls than the least
busy one has."""


def _address(value: str) -> str:
    url = value.strip().rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError("base_url must start with http:// or https://")
    if "@" in url.split("/")[2]:
        raise ValueError("base_url must not hold a user or password; use api_key or headers")
    return url


Address = Annotated[str, AfterValidator(_address)]


class Replica(BaseModel):
    """One of several servers that serve the same model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Address
    """As `base_url`."""
    api_key: SecretStr | None = None
    """In the place of the model's."""
    weight: float = Field(1.0, gt=0)
    """Its share of the calls, compared with the others'."""
    max_concurrency: int | None = Field(None, ge=1)
    """Calls in flight at once at this replica."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Calls that may begin in a minute at this replica."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Tokens of requests and answers in a minute at this replica."""


@dataclass(slots=True)
class Try:
    """What one try of a call came to."""

    replica: str
    """Address."""
    status: int | None = None
    """Of the HTTP answer, if one came."""
    kind: str | None = None
    """The `ErrorKind` of its failure, or `cancelled`; None for a good answer."""
    seconds: float = 0.0
    """From the request until the answer (of a stream: until its first event), without the wait for a slot."""


class Place:
    """A replica and how it is doing."""

    __slots__ = (
        *("ejected", "failures", "fault", "in_flight", "pause", "probed", "rates", "replica", "rests", "started"),
        "trial",
    )

    def __init__(self, replica: Replica, pause: float) -> None:
        self.replica = replica
        self.rates = Rates(replica.requests_per_minute, replica.tokens_per_minute)
        self.in_flight = 0
        self.started = 0
        self.failures = 0
        self.pause = pause
        self.ejected = 0.0
        """When it may be tried again, on the loop's clock; 0 while it is well."""
        self.rests = 0.0
        """Until when it asked for no calls."""
        self.trial = False
        self.fault: ErrorKind | None = None
        """For what it was ejected."""
        self.probed = False
        """Whether it is looked after, so that no call has to try it."""

    @property
    def load(self) -> tuple[float, float]:
        """What it has to do, and where two have the same, what it had."""
        return self.in_flight / self.replica.weight, self.started / self.replica.weight

    @property
    def full(self) -> bool:
        most = self.replica.max_concurrency
        return most is not None and self.in_flight >= most


class Pool:
    """The replicas of a model and those who wait for one, in the order of their coming.

    A call goes to the least busy replica, further calls of its rollout to the same one, whose cache knows the prefix.
    One that fails `FAULTS` times in a row is ejected; when its pause is over, one call tries it, unless it is probed:
    an answer brings it back, a failure doubles the pause. Where all are ejected, the one whose pause ends first is
    used: a model is never refused for its health alone.

    Args:
        max_concurrency: calls in flight at once at all replicas together.
        pause: seconds of the first ejection.
        rates: of all replicas together; whoever takes a place spends them.
    """

    def __init__(
        self, replicas: Sequence[Replica], *, max_concurrency: int, pause: float, rates: Rates | None = None
    ) -> None:
        self.rates = rates or Rates(None, None)
        self.places = [Place(replica, pause) for replica in replicas]
        self._pause = pause
        self._most = max_concurrency
        self._in_flight = 0
        self._homes: OrderedDict[str, Place] = OrderedDict()
        self._waiting: deque[tuple[asyncio.Future[Place], str, Collection[Place]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take_now(self, rollout: str = "", avoid: Collection[Place] = ()) -> Place | None:
        """As `take`, where nobody need wait for one; else None."""
        place = None if self._waiting else self._free(rollout, avoid)
        return None if place is None else self._taken(place, rollout)

    async def take(self, rollout: str = "", avoid: Collection[Place] = ()) -> Place:
        """A place for one call, as soon as there is one; give it back with `leave`.

        Args:
            avoid: places that are only taken where no other is well.
        """
        if (place := self.take_now(rollout, avoid)) is not None:
            return place
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, rollout, avoid))
        self._wait_for_rest()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(future.result())
            raise

    def leave(self, place: Place) -> None:
        """The call at this place is over."""
        place.in_flight -= 1
        place.trial = place.trial and place.in_flight > 0
        self._in_flight -= 1
        self._serve()

    def close(self) -> None:
        """Set no more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def went_well(self, place: Place) -> None:
        """It answered."""
        if place.ejected:
            log.warning("replica %s answers again", place.replica.url)
        place.failures, place.ejected, place.pause, place.trial = 0, 0.0, self._pause, False

    def went_wrong(self, place: Place, kind: ErrorKind, rest: float | None = None) -> None:
        """It failed in this way.

        Args:
            rest: seconds for which it asked to be left alone.
        """
        now = asyncio.get_running_loop().time()
        if kind is ErrorKind.MODEL_RATE_LIMITED and rest:
            place.rests = max(place.rests, now + rest)
        if kind not in AT_FAULT or len(self.places) == 1:
            return
        place.failures += 1
        if place.ejected > now or (place.failures < FAULTS and kind is not ErrorKind.MODEL_UNAUTHORIZED):
            return
        log.warning("replica %s is left alone for %g s (%s)", place.replica.url, place.pause, kind.value)
        place.ejected, place.trial, place.fault = now + place.pause, False, kind
        place.failures = FAULTS
        place.pause = min(2 * place.pause, LONGEST_EJECTION)
        for rollout in [rollout for rollout, home in self._homes.items() if home is place]:
            del self._homes[rollout]

    def returned(self, place: Place) -> None:
        """It answered a probe. The next failure ejects it again, for longer: a probe is no call."""
        log.warning("replica %s answers again", place.replica.url)
        place.failures, place.ejected, place.trial = FAULTS - 1, 0.0, False
        self._serve()

    def still_ejected(self, place: Place, seconds: float) -> None:
        """It did not answer a probe, and is left alone for about so long."""
        place.ejected = asyncio.get_running_loop().time() + seconds * random.uniform(0.75, 1.25)

    def unprobed(self, place: Place) -> None:
        """It is looked after no more."""
        place.probed = False
        self._serve()

    def others_are_well(self, avoid: Collection[Place]) -> bool:
        """Whether a call that failed at these places has another to go to at once."""
        now = asyncio.get_running_loop().time()
        return any(
            place not in avoid and place.rests <= now and place.ejected <= now and not (place.ejected and place.probed)
            for place in self.places
        )

    def _taken(self, place: Place, rollout: str) -> Place:
        place.in_flight += 1
        place.started += 1
        place.trial = place.ejected > 0
        self._in_flight += 1
        if rollout and len(self.places) > 1:
            self._homes.setdefault(rollout, place)
            self._homes.move_to_end(rollout)
            if len(self._homes) > REMEMBERED:
                self._homes.popitem(last=False)
        return place

    def _free(self, rollout: str, avoid: Collection[Place]) -> Place | None:
        if self._in_flight >= self._most:
            return None
        now = asyncio.get_running_loop().time()
        rested = [place for place in self.places if place.rests <= now]
        well = [
            place
            for place in rested
            if not place.ejected or (place.ejected <= now and not place.trial and not place.probed)
        ]
        if not well:
            # none is known to answer: better a failure that tells why than a wait for nothing
            ejected = [place for place in rested if place.ejected and not place.full]
            return min(ejected, key=lambda place: place.ejected, default=None)
        fit = [place for place in well if not place.full]
        fit = [place for place in fit if place not in avoid] or fit
        if not fit:
            return None
        least = min(fit, key=lambda place: place.load)
        home = self._homes.get(rollout)
        if home in fit and home is not None and home.load[0] <= BUSIER * least.load[0] + SLACK / home.replica.weight:
            return home
        return least

    def _serve(self) -> None:
        while self._waiting:
            future, rollout, avoid = self._waiting[0]
            if not future.done():
                place = self._free(rollout, avoid)
                if place is None:
                    self._wait_for_rest()
                    return
                future.set_result(self._taken(place, rollout))
            self._waiting.popleft()

    def _wait_for_rest(self) -> None:
        """Look again when the next replica has rested; nobody else would."""
        loop = asyncio.get_running_loop()
        due = min((place.rests for place in self.places if place.rests > loop.time()), default=None)
        if due is not None and (self._timer is None or self._timer.when() > due):
            self.close()
            self._timer = loop.call_at(due, self._rested)

    def _rested(self) -> None:
        self._timer = None
        self._serve()
