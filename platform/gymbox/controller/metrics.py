"""Metrics: what a controller counts, in Prometheus' text format."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gymbox.controller.arrivals import Arrivals
    from gymbox.controller.pools import Pools
    from gymbox.controller.sandbox import Sandbox
    from gymbox.controller.views import Views

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Observed(Protocol):
    """What is looked at when somebody asks."""

    @property
    def waiting(self) -> int: ...

    @property
    def containers(self) -> int: ...

    @property
    def arrivals(self) -> Arrivals: ...

    @property
    def pools(self) -> Pools: ...

    @property
    def views(self) -> Views: ...

    def all(self) -> Iterable[Sandbox]: ...


class Metrics:
    """Counters that are counted as things happen, and gauges that are read when asked for."""

    def __init__(self, observed: Observed) -> None:
        self._registry = CollectorRegistry()
        self.created = Counter(
            "gymbox_sandboxes_created", "Sandboxes asked for or adopted.", ["environment"], registry=self._registry
        )
        self.ended = Counter(
            "gymbox_sandboxes_ended", "Sandboxes ended, by cause.", ["environment", "cause"], registry=self._registry
        )
        self.refused = Counter(
            "gymbox_sandboxes_refused", "Requests refused because all places were taken.", registry=self._registry
        )
        self._phases = Histogram(
            "gymbox_start_seconds",
            "Seconds from the request until a sandbox got to a phase.",
            ["environment", "phase"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._claims = Counter(
            "gymbox_pool_claims",
            "Requests for environments that have a pool: a hit was given a container of it.",
            ["environment", "result"],
            registry=self._registry,
        )
        self._claim_seconds = Histogram(
            "gymbox_pool_claim_seconds",
            "Seconds from a request that was given a container of a pool until it was answered.",
            ["environment"],
            buckets=(0.001, 0.0025, *_BUCKETS),
            registry=self._registry,
        )
        self._registry.register(_Gauges(observed))

    def claimed(self, environment: str, hit: bool) -> None:
        """A pool was asked for a container."""
        self._claims.labels(environment, "hit" if hit else "miss").inc()

    def answered(self, sandbox: Sandbox) -> None:
        """A sandbox on a container of a pool can be used."""
        self._claim_seconds.labels(sandbox.environment.name).observe(max(0.0, time.monotonic() - sandbox.created))

    def ready(self, sandbox: Sandbox) -> None:
        """A sandbox became ready: note how long each phase took, unless a pool had done that before."""
        if sandbox.claimed is not None:
            return
        for phase, at in sandbox.container.times.items():
            self._phases.labels(sandbox.environment.name, phase).observe(max(0.0, at - sandbox.created))

    def text(self) -> bytes:
        """Everything, for a scraper."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        sandboxes = GaugeMetricFamily(
            "gymbox_sandboxes", "Sandboxes now, ended ones while remembered.", labels=["environment", "status"]
        )
        tally = Tally((one.environment.name, self._observed.views.status(one)) for one in self._observed.all())
        for labels, count in sorted(tally.items()):
            sandboxes.add_metric(labels, count)
        yield sandboxes
        places = GaugeMetricFamily("gymbox_places", "Places that runs have, and wait for.", labels=["run", "state"])
        for each in self._observed.arrivals.view():
            places.add_metric([each.run, "held"], each.places)
            places.add_metric([each.run, "waiting"], each.waiting)
        yield places
        target = GaugeMetricFamily(
            "gymbox_pool_target", "Spare containers that are wanted now.", labels=["environment"]
        )
        size = GaugeMetricFamily("gymbox_pool_size", "Spare containers now.", labels=["environment", "status"])
        for pool in self._observed.pools.views():
            target.add_metric([pool.environment], pool.wanted)
            size.add_metric([pool.environment, "ready"], pool.ready)
            size.add_metric([pool.environment, "starting"], pool.starting)
        yield target
        yield size
        yield GaugeMetricFamily("gymbox_containers", "Containers now.", value=self._observed.containers)
        yield GaugeMetricFamily(
            "gymbox_start_queue_length", "Containers in line to be started.", value=self._observed.waiting
        )
