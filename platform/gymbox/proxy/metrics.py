"""Metrics: what the proxy counts, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The figures of one proxy, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "gymbox_proxy_requests",
            "Requests ended, by status; `cancelled`: the client left, `cut`: the upstream broke off.",
            ["kind", "status"],
            registry=self._registry,
        )
        self.in_flight = Gauge("gymbox_proxy_in_flight", "Requests being served.", ["kind"], registry=self._registry)
        self.seconds = Histogram(
            "gymbox_proxy_seconds",
            "Seconds from a request's headers to the end of its answer.",
            ["kind"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=self._registry,
        )
        self.routes = Gauge("gymbox_proxy_routes", "Sandboxes in the table.", registry=self._registry)

    def text(self) -> bytes:
        """All of it, to be scraped."""
        return generate_latest(self._registry)
