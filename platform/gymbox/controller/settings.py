"""Settings of a controller."""

from __future__ import annotations

import os

from gymbox_sandbox.lifecycle import PoolSettings
from pydantic import BaseModel, ConfigDict, Field

DEFAULT_PORT = 8710
STARTS_A_CORE = 1.5
"""A container's start and removal, alone, keep a processor busy (0.4 CPU-s in 0.4 s); half more for what waits."""


class ControllerSettings(BaseModel):
    """What a controller allows, and where it listens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on; one that other machines reach needs `allowed_hosts`."""
    port: int = Field(DEFAULT_PORT, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that clients may call it by (Host header), beside those of loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may call it; by default none."""
    max_sandboxes: int = Field(256, ge=1)
    """Sandboxes that may live at once; a request beyond that waits for a place as long as it says (`patience`), and is
    then answered with 429 and Retry-After."""
    max_waiting: int = Field(4096, ge=0)
    """Requests that may stand in line for a place (those with `patience`); one more of a run that waits already is
    answered with 429."""
    max_starting: int | None = Field(None, ge=1)
    """Containers that may start at once; the others wait in line, fair between runs as for places, and their start
    clock waits with them. Default: 1.5 for each processor, at least two; beyond, they only slow each other
    down."""
    lease: float = Field(600, gt=0, le=86_400)
    """Seconds after which a sandbox that nobody renews is removed, where the request does not say."""
    models_url: str | None = None
    """Where this machine reaches the proxy, for model calls of sandboxes with `network: models`; by default where
    clients do."""
    idle: float = Field(5, ge=0)
    """Seconds for which a container that several sandboxes share is kept after the last of them has gone."""
    tombstones: int = Field(1000, ge=0)
    """Ended sandboxes that are remembered, so that whoever asks is told why they ended."""
    snapshot_mb: int = Field(10_240, ge=1)
    """What snapshots may take of the disk, in megabytes. Beyond it those go that no living sandbox began with, the
    longest unused first; where that is not enough, a new one is refused."""
    snapshot_age: float = Field(604_800, gt=0)
    """Seconds for which a snapshot is kept that no sandbox begins with and no living one began with."""
    drain: float = Field(30, ge=0)
    """Seconds that starts in flight get to finish when the controller is asked to stop."""
    pools: dict[str, PoolSettings] = {}
    """By environment, how many started containers wait for requests; what `PUT /pools` has set wins."""

    @property
    def most_starting(self) -> int:
        """`max_starting`, or by the processors that this process may use."""
        if self.max_starting is not None:
            return self.max_starting
        return max(2, round(STARTS_A_CORE * len(os.sched_getaffinity(0))))
