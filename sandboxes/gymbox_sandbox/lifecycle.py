"""Lifecycle: the requests and answers of the controller, and what it tells the proxy.

Apart from `wire`, because a sandbox never needs them: each model costs memory in every one.
"""

from __future__ import annotations

import hashlib
from typing import Literal, Self

from pydantic import Field, model_validator

from gymbox_sandbox.wire import Strict

ROLLOUT_HEADER = "X-Gymbox-Rollout"
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
GROUP_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,89}$"

Priority = Literal["low", "normal", "high"]
SandboxStatus = Literal["queued", "starting", "ready", "paused", "ended"]

EndCause = Literal[
    "deleted",
    "expired",
    "oom_killed",
    "disk_full",
    "timeout",
    "killed",
    "exited",
    "failed_to_start",
    "lost",
]


class Ended(Strict):
    """Why a sandbox is no more; recorded before it is removed."""

    cause: EndCause
    """`failed_to_start`: it never became ready, whatever ended it; only `oom_killed` and `disk_full` say more. Of one
    that was ready, `timeout`: it lived for longer than its environment allows; `killed`: from outside, by SIGKILL or
    SIGTERM; `exited`: by itself, also by a crash (`exit_code` is then 128 and the signal's number); `lost`: nobody saw
    how."""
    detail: str
    exit_code: int | None = None
    logs: str = ""
    """The last lines that it printed, 8 KiB at most."""


class Phases(Strict):
    """Seconds from the request to the end of each phase; None where it was not reached. What a container had behind it
    before the request, as one of a pool has, took 0."""

    queued: float | None = None
    """It had its place, and its container left the line to be started."""
    created: float | None = None
    started: float | None = None
    restored: float | None = None
    """Its snapshot was in place, where it began with one."""
    ready: float | None = None
    """Its server answers."""
    claimed: float | None = None
    """It was given a container of the pool; None: one was started for it, or is shared."""
    reset: float | None = None
    """Its task was set."""


class CreateSandbox(Strict):
    """`POST /sandboxes`. The same id with the same body is the same request; with another body it is a conflict."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    environment: str = Field(pattern=ID_PATTERN)
    lease: float | None = Field(None, gt=0, le=86_400)
    """Seconds until it is reaped, unless renewed. Default: the controller's."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free labels for listing; names that start with `gymbox.` are refused."""
    wait: bool = True
    """Answer only when it is ready or has failed (else 202 at once)."""
    run: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    """The run that it is for: places are shared fairly between runs. Requests without one are like one run."""
    priority: Priority = "normal"
    """Of the run; while places are scarce, `high`, `normal` and `low` have them as 100 : 10 : 1."""
    share: float = Field(1, gt=0, le=1_000_000)
    """Of the run, among those of its priority: one of 3 has three places for each of one of 1."""
    patience: float = Field(0, ge=0, le=86_400)
    """With `wait`: seconds to stand in line for a place while all are taken; then, and with 0 at once, 429."""
    snapshot: str | None = Field(None, pattern=ID_PATTERN)
    """Begin with what this snapshot holds, instead of nothing."""


class QueuePlace(Strict):
    """Where something stands in a line. Both are estimates, by what was seen so far."""

    position: int
    """How many are before it; of several runs, by their shares."""
    expected_seconds: float | None = None
    """Until its turn comes and its container is started; None: nothing was seen yet."""


class QueueView(Strict):
    """One run in the line for places."""

    run: str
    """Empty: requests that name none."""
    priority: Priority
    share: float
    places: int
    """Sandboxes that it has."""
    waiting: int
    """Requests that stand in line for one; within a run, first come, first served."""
    next: QueuePlace | None = None
    """The first of those that wait."""


class RenewSandbox(Strict):
    lease: float | None = Field(None, gt=0, le=86_400)


class SandboxTokens(Strict):
    tools: str
    control: str


class SandboxView(Strict):
    """A sandbox as the controller shows it."""

    id: str
    environment: str
    status: SandboxStatus
    network: str = "none"
    """What it may reach: `none`, `internal`, `models`, `allow: HOST, …` or `open`."""
    provider: str
    image: str | None = None
    """Digest or content-addressed tag of its image; None for a process."""
    container: str | None = None
    """Name of the container or process that serves it; several sandboxes share one where `sessions` > 1."""
    url: str | None = None
    """Base address through the proxy."""
    tokens: SandboxTokens | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    created_at: float
    """Unix seconds."""
    expires_at: float
    phases: Phases = Phases()
    snapshot: str | None = None
    """What it began with."""
    queue: QueuePlace | None = None
    """Where its container stands in the line to be started; None: it has left it."""
    group: str | None = None
    """The group that it is of."""
    ended: Ended | None = None


class SnapshotSandbox(Strict):
    """`POST /sandboxes/{id}/snapshot`. The same id for the same sandbox is the same request."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    """Of the snapshot."""
    files_only: bool = False
    """Leave out what the environment's instance knows of its task: sandboxes from it have not been reset, and `reset`
    finds the files in place. For environments without `snapshot` and `restore`."""
    labels: dict[str, str] = Field(default_factory=dict)


class SnapshotView(Strict):
    """What a sandbox was at one moment: its files (workspace, /tmp, the agent's home) and, where the environment can
    tell it, what its instance knew. Processes are not saved."""

    id: str
    environment: str
    digest: str
    """Of the environment's files: only sandboxes of the same may begin with it."""
    provider: str
    image: str | None
    sandbox: str
    """Where it was taken."""
    created_at: float
    """Unix seconds."""
    used_at: float
    """When a sandbox last began with it."""
    size: int
    """Bytes on disk."""
    files: int
    left_out: int
    """Sockets, which are nothing without their process."""
    state: Literal["not_reset", "saved", "left_out"]
    """What it holds of the environment's instance: nothing, as there was no reset yet; all; or nothing, as asked."""
    labels: dict[str, str] = Field(default_factory=dict)
    used_by: list[str] = Field(default_factory=list)
    """Sandboxes alive that began with it; while there are any it is not collected."""


class ForkSandbox(Strict):
    """`POST /sandboxes/{id}/fork`: all of them or none."""

    n: int = Field(1, ge=1, le=64)
    id: str | None = Field(None, pattern=ID_PATTERN, max_length=90)
    """The new ones are `ID.0`, `ID.1`, … With an id of the caller's, a repeat is the same request."""
    files_only: bool = False
    """As of a snapshot."""
    lease: float | None = Field(None, gt=0, le=86_400)
    labels: dict[str, str] = Field(default_factory=dict)
    patience: float = Field(0, ge=0, le=86_400)
    """Seconds that each may stand in line for a place, on the account of the run whose sandbox is forked."""


class CreateGroup(CreateSandbox):
    """`POST /sandboxes:group`: `n` identical sandboxes, all or none; what else is said is said of each."""

    id: str | None = Field(None, pattern=GROUP_PATTERN)
    """Its sandboxes are `<id>.0`, `<id>.1`, …"""
    n: int = Field(ge=1, le=4096)
    patience: float = Field(0, ge=0, le=86_400)
    """With `wait`: seconds to stand in line until `n` places are free at once; then, and with 0 at once, 429."""


class GroupView(Strict):
    """Sandboxes that were asked for together."""

    id: str
    n: int
    sandboxes: list[SandboxView]


class PoolSettings(Strict):
    """How many started containers of an environment wait for requests."""

    target: int = Field(0, ge=0, le=4096)
    """That are kept at any time; 0, with no ceiling: there is no pool."""
    ceiling: int | None = Field(None, ge=0, le=4096)
    """To which demand and forecasts may raise their number. Default: four times the target."""
    decay: float = Field(60, gt=0, le=86_400)
    """Seconds without a request after which the number that demand has raised is halved, and so on."""

    @property
    def most(self) -> int:
        """The ceiling."""
        return 4 * self.target if self.ceiling is None else self.ceiling

    @model_validator(mode="after")
    def _target_below_ceiling(self) -> Self:
        if self.ceiling is not None and self.ceiling < self.target:
            raise ValueError(f"the ceiling ({self.ceiling}) is below the target ({self.target}): raise it")
        return self


class Forecast(Strict):
    """`PUT /pools/{environment}/forecasts/{run}`: what a run will still ask for."""

    sandboxes: int = Field(ge=0, le=1_000_000_000)
    """Each request of the run takes one off."""
    lease: float = Field(600, gt=0, le=86_400)
    """Seconds after which it no longer counts, unless it is told again."""


class PoolView(PoolSettings):
    """The pool of an environment."""

    environment: str
    wanted: int
    """How many are to be there now, by target, demand and forecasts, within the ceiling."""
    ready: int
    starting: int
    demand: int
    """The requests of the busiest ten seconds, halved while none come."""
    forecasts: dict[str, int] = Field(default_factory=dict)
    """By run: sandboxes that it will still ask for."""
    hits: int
    """Requests that were given a container that was ready or starting."""
    misses: int
    error: str = ""
    """Why the last start failed; it is tried again in `retry_in` seconds."""
    retry_in: float | None = None


class Route(Strict):
    """How the proxy reaches one sandbox. Tokens come as SHA-256 hex: the proxy can check, not mint, them."""

    sandbox: str
    socket: str | None = None
    """Host path of the server's unix socket, or
    `address`: host:port."""
    address: str | None = None
    session: str = ""
    tools_token: str
    control_token: str
    paused: bool = False
    """Answer 409 meanwhile."""
    models_token: str = ""
    """Of the container that it is on, where that may call models; empty: it may not."""
    ended: Ended | None = None
    """Set: answer 410 with this cause."""


def fingerprint(token: str) -> str:
    """SHA-256 hex of a token, the form in which routes carry it: enough to check it, not to use it."""
    return hashlib.sha256(token.encode()).hexdigest()


class RouteTable(Strict):
    """The whole truth; `PUT /routes` on the proxy's admin listener replaces what was there."""

    version: int
    """Grows, also across restarts of the controller (it starts from the clock); an older table is refused."""
    routes: list[Route]
    admin_token: str = ""
    """SHA-256 hex of the token that may call everything; empty: there is none. So the proxy needs no secret."""
