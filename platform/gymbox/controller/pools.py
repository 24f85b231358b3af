"""Pools: started containers that nobody has asked for yet, so that a request is answered in milliseconds.

How many an environment keeps follows what is asked for: at least its `target`, as many as were asked for in the
busiest `RECENT` seconds (halved for each `decay` seconds without a request), and as many as runs say they will need,
but never more than its ceiling. They count in `max_sandboxes` and give way to every request. One is given once, by
writing down whose it is before that is answered; see `records.Claims`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, Forecast, PoolSettings, PoolView

from gymbox.controller.container import Container
from gymbox.controller.containers import Containers
from gymbox.controller.records import Records
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Invalid, NotFound

log = logging.getLogger(__name__)

RECENT = 10.0
"""Seconds in which requests make up the demand."""
QUIET, LONGEST_HOLD = 0.25, 2.0
"""Seconds without a request after which pools are filled again, and for which a burst delays that: it is answered
first, but requests that never pause do not keep pools empty."""
TICK = 1.0
"""Seconds after which pools are looked at though nothing has happened."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before another start after one that failed; doubled for each further one, and at most."""
STEADY = 10.0
"""Seconds that a container has to live for its pool not to count as failing."""


class Counted(Protocol):
    """Who has how many places."""

    @property
    def held(self) -> int: ...

    @property
    def waiting(self) -> int: ...


@dataclass(eq=False, slots=True)
class Pool:
    """That of one environment."""

    environment: Environment
    settings: PoolSettings
    spares: dict[str, Container] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=deque)
    """When it was asked, in the last `RECENT` seconds; on the monotonic clock, like all times here."""
    demand: int = 0
    settled: float = field(default_factory=time.monotonic)
    """When it was last asked, or its demand last halved."""
    forecasts: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By run: sandboxes to come, and until when that counts."""
    looked: float = 0
    """When it was last seen whether its environment has changed."""
    failures: int = 0
    not_before: float = 0
    error: str = ""
    hits: int = 0
    misses: int = 0

    def asked(self) -> None:
        """A container was asked for."""
        now = time.monotonic()
        self.recent.append(now)
        while self.recent[0] < now - RECENT:
            self.recent.popleft()
        self.demand, self.settled = max(self.demand, len(self.recent)), now

    def decay(self) -> None:
        """Forget demand that was a while ago, and forecasts that are past."""
        now = time.monotonic()
        if self.demand and now - self.settled >= self.settings.decay:
            self.demand, self.settled = self.demand // 2, now
        self.forecasts = {run: one for run, one in self.forecasts.items() if one[0] and one[1] > now}

    @property
    def wanted(self) -> int:
        sandboxes = sum(left for left, _ in self.forecasts.values())
        forecast = ceil(sandboxes / self.environment.manifest.sessions)
        return min(self.settings.most, max(self.settings.target, self.demand, forecast))

    @property
    def ready(self) -> int:
        return sum(1 for spare in self.spares.values() if spare.started is not None)

    def failed(self, reason: str) -> None:
        """Wait before the next start, longer each time."""
        self.failures, self.error = self.failures + 1, reason
        self.not_before = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.failures - 1))

    def works(self) -> None:
        """Its containers start."""
        self.failures, self.error = 0, ""

    def fits(self, environment: Environment) -> bool:
        """Whether its containers are what this environment, as it is now, would have started."""
        mine = self.environment
        return mine is environment or (mine.digest, mine.manifest) == (environment.digest, environment.manifest)

    def view(self) -> PoolView:
        pause = self.not_before - time.monotonic()
        return PoolView(
            **self.settings.model_dump(),
            environment=self.environment.name,
            wanted=self.wanted,
            ready=self.ready,
            starting=len(self.spares) - self.ready,
            demand=self.demand,
            forecasts={run: left for run, (left, _) in self.forecasts.items()},
            hits=self.hits,
            misses=self.misses,
            error=self.error,
            retry_in=round(pause, 3) if self.error and pause > 0 else None,
        )


class Pools:
    """All pools of a controller, and the one task that fills them.

    Args:
        places: who has places; those of spare containers are not among them.
        most: `max_sandboxes`.
        given: settings by environment; what `put` has recorded wins over them.
        claimed: hears of each request for an environment that has a pool, and whether it had a container for it.

    Raises:
        ConfigError: an environment of `given` is not there, or its pool could never be.
    """

    def __init__(
        self,
        containers: Containers,
        environments: Callable[[str], Environment],
        places: Counted,
        most: int,
        records: Records[PoolSettings],
        given: Mapping[str, PoolSettings],
        claimed: Callable[[str, bool], object],
    ) -> None:
        self._containers = containers
        self._environments = environments
        self._places = places
        self._most = most
        self._records = records
        self._claimed = claimed
        self._pools: dict[str, Pool] = {}
        self._changed = asyncio.Event()
        self._burst, self._last = 0.0, 0.0
        """When the present burst of requests began, and the last one came."""
        self._task: asyncio.Task[None] | None = None
        self._given = frozenset(given)
        for name, settings in given.items():
            self._check(name, settings)
            self._set(Pool(environments(name), settings))
        for name, settings in records.read().items():
            try:
                self._set(Pool(environments(name), settings))
                if not settings.most and name not in given:
                    records.drop(name)
            except ConfigError as error:
                log.warning("the pool of %s is left out: %s", name, error)

    def open(self, found: Iterable[Container]) -> None:
        """Begin to fill them, with what an earlier controller had for them."""
        for spare in found:
            pool = self._pools.get(spare.environment.name)
            if pool is None or spare.closing or not pool.fits(spare.environment):
                self._containers.discard(spare)
            else:
                pool.spares[spare.id] = spare
        self._task = asyncio.create_task(self._fill_forever(), name="pools")

    async def close(self) -> None:
        """Fill no more; spare containers stay until all are let go of. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def __len__(self) -> int:
        """Containers that nobody has asked for."""
        return sum(len(pool.spares) for pool in self._pools.values())

    def views(self) -> list[PoolView]:
        """All pools, by their environments' names."""
        return [self._pools[name].view() for name in sorted(self._pools)]

    # --- what callers ask for

    def put(self, name: str, settings: PoolSettings) -> PoolView:
        """Have a pool of that size from now on, also after a restart; one of a target and a ceiling of 0 is none.

        Raises:
            NotFound: there is no such environment.
            Invalid: more are to be kept than there may be sandboxes.
            OSError: it could not be recorded; all is as before.
        """
        pool = self._pools.get(name)
        if pool is None or settings.most:  # one whose environment is gone can still be ended
            environment = self._environment(name)
            pool = pool or Pool(environment, settings)
        try:
            self._check(name, settings)
        except ConfigError as error:
            raise Invalid(str(error)) from error
        if settings.most or name in self._given:  # else nothing has to be known beyond a restart
            self._records.write(name, settings)
        else:
            self._records.drop(name)
        pool.settings = settings
        pool.works()  # who mends what was wrong does not wait for the next try
        pool.not_before = 0
        self._set(pool)
        self.poke()
        return pool.view()

    def _set(self, pool: Pool) -> None:
        """Have it as it is from now on; one that is to keep none is forgotten."""
        if pool.settings.most:
            self._pools[pool.environment.name] = pool
            return
        self._pools.pop(pool.environment.name, None)
        for spare in list(pool.spares.values()):
            self._drop(pool, spare)

    def forecast(self, name: str, run: str, told: Forecast) -> None:
        """A run tells how many sandboxes it will still ask for. Where the environment has no pool, that changes
        nothing.

        Raises:
            NotFound: there is no such environment.
        """
        self._environment(name)
        pool = self._pools.get(name)
        if pool is not None:
            pool.forecasts[run] = told.sandboxes, time.monotonic() + told.lease
            pool.decay()
            self.poke()

    def foresee(self, request: CreateSandbox) -> None:
        """Its run needs one less from now on."""
        pool = self._pools.get(request.environment)
        if pool is not None and request.run in pool.forecasts:
            left, until = pool.forecasts[request.run]
            pool.forecasts[request.run] = max(0, left - 1), until

    def claim(self, request: CreateSandbox, sandbox: str, environment: Environment) -> Container | None:
        """A container on which the sandbox lives from now on: one that answers, else one that is starting; None: there
        is none, or it could not be noted whose it is."""
        pool = self._pools.get(environment.name)
        if pool is None:
            return None
        pool.asked()
        if not pool.fits(environment):
            self._renew(pool, environment)
        chosen = min(pool.spares.values(), key=lambda spare: spare.started is None, default=None)
        if chosen is not None:
            try:
                self._containers.enter_spare(chosen, request, sandbox)
            except OSError as error:
                log.warning("sandbox %s gets no container of the pool: cannot note it: %s", sandbox, error)
                chosen = None
        if chosen is None:
            pool.misses += 1
        else:
            pool.hits += 1
            del pool.spares[chosen.id]
        self._claimed(environment.name, chosen is not None)
        now = time.monotonic()
        self._burst, self._last = self._burst if now - self._last < QUIET else now, now
        self.poke()
        return chosen

    def give_way(self) -> None:
        """Stop what there is no room for any more, beginning with what is not ready yet."""
        while (largest := self._largest()) and self._places.held + len(self) > self._most:
            self._drop(largest, next(reversed(largest.spares.values())))

    # --- what becomes of containers

    def started(self, container: Container) -> None:
        """A container answers."""
        self.poke()

    def ended(self, container: Container, ended: Ended) -> None:
        """A container is no more; where it was spare, another takes its place."""
        pool = self._pools.get(container.environment.name)
        if pool is not None and pool.spares.pop(container.id, None) is not None:
            pool.failed(ended.detail)
            log.warning("the pool of %s has lost %s: %s", container.environment.name, container.id, ended.detail)
        self.poke()

    def poke(self) -> None:
        """Look at the pools soon."""
        self._changed.set()

    # --- filling

    async def _fill_forever(self) -> None:
        while True:
            pause = TICK
            try:
                pause = self._adjust()
            except Exception:
                log.exception("the pools could not be looked after; trying again")
            self._changed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing has happened, but time has gone on

    def _adjust(self) -> float:
        """Bring every pool nearer to its size. Returns: seconds after which to look again at the latest."""
        now = time.monotonic()
        for pool in self._pools.values():
            pool.decay()
            if now - pool.looked >= TICK:
                pool.looked = now
                self._refresh(pool)
            for spare in list(pool.spares.values())[pool.wanted :]:
                self._drop(pool, spare)
            if any(spare.started and now - spare.times["ready"] > STEADY for spare in pool.spares.values()):
                pool.works()
        if (hold := min(self._last + QUIET, self._burst + LONGEST_HOLD)) > now:
            return hold - now
        while self._containers.has_start_to_spare and not self._places.waiting:
            lacking = [
                pool for pool in self._pools.values() if len(pool.spares) < pool.wanted and pool.not_before < now
            ]
            if not lacking or self._places.held + len(self) >= self._most:
                break
            pool = min(lacking, key=lambda pool: len(pool.spares) / pool.wanted)
            spare = self._containers.begin_spare(pool.environment)
            pool.spares[spare.id] = spare
        return TICK

    def _refresh(self, pool: Pool) -> None:
        """Empty it where its environment has changed."""
        try:
            environment = self._environments(pool.environment.name)
        except ConfigError as error:
            if pool.not_before < time.monotonic():
                pool.failed(str(error))
            for spare in list(pool.spares.values()):
                self._drop(pool, spare)
            return
        if not pool.fits(environment):
            self._renew(pool, environment)

    def _renew(self, pool: Pool, environment: Environment) -> None:
        log.info("the pool of %s is emptied: its environment has changed", environment.name)
        for spare in list(pool.spares.values()):
            self._drop(pool, spare)
        pool.environment, pool.not_before = environment, 0
        pool.works()

    def _drop(self, pool: Pool, spare: Container) -> None:
        del pool.spares[spare.id]
        self._containers.discard(spare)

    def _largest(self) -> Pool | None:
        largest = max(self._pools.values(), key=lambda pool: len(pool.spares), default=None)
        return largest if largest is not None and largest.spares else None

    def _environment(self, name: str) -> Environment:
        try:
            return self._environments(name)
        except ConfigError as error:
            raise NotFound(str(error)) from error

    def _check(self, name: str, settings: PoolSettings) -> None:
        """
        Raises:
            ConfigError: more are to be kept than there may be sandboxes.
        """
        if settings.target > self._most:
            raise ConfigError(
                f"the pool of {name} cannot keep {settings.target}: there may be {self._most} sandboxes "
                "(max_sandboxes); lower its target, or raise that"
            )
