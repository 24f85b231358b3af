"""Progress: what a run shows while it goes on, and what it says at its end."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymbox.errors import RolloutError, Stage
from gymbox.plan import Plan, Slot
from gymbox.printable import printable, printable_lines
from gymbox.results import METRICS, ROLLOUTS, RunFolder
from gymbox.rollout import RolloutResult
from gymbox.run_control import RunControl
from gymbox.runner import Summary
from gymbox.runner_settings import DEFAULT_AGENT
from gymbox.scores import Score

SHORTEST, LONGEST = 10.0, 60.0
"""Seconds between two lines where the output is no terminal: few at first, fewer later."""
TOTAL = "(all)"
PHASES = {
    Stage.PROVISION: "starting",
    Stage.RESET: "in reset",
    Stage.AGENT: "with the agent",
    Stage.VERIFY: "in verify",
}
"""What rollouts that run are said to be."""


@dataclass
class _Count:
    """The figures of one line."""

    planned: int | None
    """None: the rows tell, and are not counted before."""
    done: int = 0
    running: int = 0
    scored: int = 0
    reward: float = 0.0
    tokens: int = 0

    def take(self, score: Score) -> None:
        """What was there before."""
        self.done, self.scored, self.reward = score.rollouts, score.scored, score.reward_sum
        self.tokens = score.input_tokens + score.output_tokens

    @property
    def failed(self) -> int:
        return self.done - self.scored

    @property
    def mean(self) -> str:
        return f"{self.reward / self.scored:.3f}" if self.scored else "–"


def short(number: int) -> str:
    """`950`, `12.3k`, `4.5M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def players(inputs: Mapping[str, Any]) -> str:
    """Who does a run's tasks, by its manifest: `tool_loop with NAME`, or each of its agents with its model."""
    pairs = [(_called(inputs["agent"]), inputs["model"])] if "agent" in inputs else []
    pairs += [(name, each["model"]) for name, each in inputs.get("agents", {}).items()]
    return ", ".join(f"{agent} with {model.get('name') or _called(model)}" for agent, model in pairs)


def _called(component: Mapping[str, Any]) -> str:
    """As `agent=` and `model=` call it; a class of one's own by its name."""
    module, _, name = str(component["_target_"]).rpartition(".")
    return module.rpartition(".")[2] if module.startswith("gymbox.") else name


@dataclass
class Progress:
    """Shows a run on `console`: live where that is a terminal, else a line now and then.

    Used as `with`, inside the event loop of the run.
    """

    console: Console
    plan: Plan
    folder: RunFolder
    sandboxes: Callable[[], int] | None = None
    """How many there are now, where that is known."""
    control: RunControl = field(default_factory=RunControl)
    """Tells whether the run is paused, and how long it was."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._counts = {name: _Count(planned) for name, planned in self.plan.sizes().items()}
        self._total = _Count(len(self.plan))
        self._agents: dict[tuple[str, str], _Count] = {}
        """By environment and agent, where the run has several."""
        self._total.take(self.folder.total)
        for name, score in self.folder.scores.items():
            self._counts[name].take(score)
        for name, scores in self.folder.agents.items():
            for agent, score in scores.items():
                self._of_agent(name, agent).take(score)
        self._kinds: Counter[str] = Counter()
        self._stages: dict[str, Stage] = {}
        self._began, self._pace_began = self.clock(), self.control.time()
        self._before = self._total.done
        self._live = Live(console=self.console, get_renderable=self._table, refresh_per_second=4)
        self._next: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        environments = ", ".join(self._counts)
        manifest = self.folder.manifest
        who = players(manifest.inputs)
        by = f" by {printable(who)}" if who else ""
        where = f", {manifest.provider}" if manifest.provider else ""
        self._say(f"run {manifest.run}: {len(self.plan)} rollouts of {environments}{by}{where} → {self.folder.path}")
        if self.console.is_terminal:
            self._live.start()
        else:
            self._later()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._next is not None:
            self._next.cancel()
            self._tell()

    def started(self, slot: Slot) -> None:
        for count in self._counts_of(slot):
            count.running += 1

    def entered(self, slot: Slot, stage: Stage) -> None:
        self._stages[slot.id("")] = stage

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        self._stages.pop(slot.id(""), None)
        for count in self._counts_of(slot):
            count.running -= 1
            if result is None:
                continue
            count.done += 1
            if result.reward is not None:
                count.scored += 1
                count.reward += result.reward
            if result.response is not None and result.response.usage is not None:
                count.tokens += result.response.usage.input_tokens + result.response.usage.output_tokens
        if result is not None and result.error is not None:
            self._tell_first(result, result.error)

    def _counts_of(self, slot: Slot) -> list[_Count]:
        """All that a rollout counts for."""
        name = slot.environment.name
        of_agent = [self._of_agent(name, slot.agent or DEFAULT_AGENT)] if self.plan.agents else []
        return [self._counts[name], *of_agent, self._total]

    def _of_agent(self, environment: str, agent: str) -> _Count:
        planned = self._counts[environment].planned
        crossed = self.plan.settings.cross_agents and planned is not None
        share = planned // len(self.plan.agents) if crossed and planned is not None else None
        return self._agents.setdefault((environment, agent), _Count(share))

    def _tell_first(self, result: RolloutResult, error: RolloutError) -> None:
        """The first failure of each kind at once, so that nobody waits an hour to learn of a wrong key."""
        self._kinds[error.kind] += 1
        if self._kinds[error.kind] > 1:
            return
        where = f"{result.environment} task {printable(result.task_id, 60)}, {error.stage}"
        text = f"first {error.kind} ({where}): {printable(error.detail)}"
        last_words = error.logs.strip().rpartition("\n")[2]
        if last_words:
            text += f"\n  its log ends with: {printable(last_words)}"
        self._say(text, style="red")

    def _later(self) -> None:
        wait = min(max(SHORTEST, (self.clock() - self._began) / 6), LONGEST)
        self._next = asyncio.get_running_loop().call_later(wait, self._now_and_then)

    def _now_and_then(self) -> None:
        self._tell()
        self._later()

    def _tell(self) -> None:
        total = self._total
        figures = [
            f"{total.done}/{total.planned} done",
            self._running(),
            f"{total.failed} failed",
            f"reward {total.mean}",
            *self._sandboxes(),
            f"{short(total.tokens)} tokens",
            *self._budget(),
            *self._left(),
        ]
        self._say(" · ".join(figures))

    def _running(self) -> str:
        """How many run, and how far they are; before that, whether others are kept from it."""
        phases = Counter(self._stages.values())
        said = ", ".join(f"{phases[stage]} {phase}" for stage, phase in PHASES.items() if phases[stage])
        held = "paused · " if self.control.paused else ""
        return f"{held}{self._total.running} running{f' ({said})' if said else ''}"

    def _sandboxes(self) -> list[str]:
        if self.sandboxes is None:
            return []
        number = self.sandboxes()
        return [f"{number} {'sandbox' if number == 1 else 'sandboxes'}"]

    def _budget(self) -> list[str]:
        """How much of each limit is used."""
        return self.plan.settings.budget.told(self.folder.manifest.used)

    def _left(self) -> list[str]:
        """Time to the end at the pace so far; not before as many have ended as run at once, for until then the pace is
        anyone's guess, nor while the run is paused, for however long. Pauses that are over are no part of the pace."""
        ended, left = self._total.done - self._before, len(self.plan) - self._total.done
        if not left or self.control.paused or ended < self.plan.settings.concurrency:
            return []
        return [f"{duration(left * max(self.control.time() - self._pace_began, 0) / ended)} left"]

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        table.add_column("")
        for heading in ("done", "running", "failed", "reward", "tokens"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows: list[tuple[str, _Count]] = []
        for name, count in self._counts.items():
            shares = sorted(key for key in self._agents if key[0] == name)
            rows += [(name, count), *((f"  {key[1]}", self._agents[key]) for key in shares)]
        if len(self._counts) > 1:
            rows.append((TOTAL, self._total))
        for name, count in rows:
            table.add_row(
                Text(printable(name), overflow="ellipsis", no_wrap=True),
                "" if count.planned is None else ProgressBar(total=count.planned, completed=count.done, width=16),
                str(count.done) if count.planned is None else f"{count.done}/{count.planned}",
                str(count.running),
                Text(str(count.failed), style="red" if count.failed else ""),
                count.mean,
                short(count.tokens),
            )
        spent = f"{duration(self.clock() - self._began)} so far"
        below = [self._running(), *self._sandboxes(), spent, *self._budget(), *self._left()]
        return Group(table, Text(" · ".join(below), style="dim"))

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable_lines(text), style=style), soft_wrap=True)


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def show(summary: Summary, console: Console, *, program: str, resume: str, onward: str) -> None:
    """The table at the end, where the results are, and what to do next.

    Args:
        program: what to type to run gymbox.
        resume: the command that goes on with a run that is not done.
        onward: the command to try after one that is.
    """
    table = Table(title=f"run {summary.run}: {summary.status}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("environment", no_wrap=True)
    for heading in ("rollouts", "scored", "reward", "tokens in", "out", "s each\nwith waits"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: list[tuple[str, Score]] = []
    for name, score in sorted(summary.environments.items()):
        shares = sorted(summary.agents.get(name, {}).items())
        rows += [(name, score), *((f"  {agent}", share) for agent, share in shares)]
    if len(summary.environments) > 1:
        rows.append((TOTAL, summary.total))
    for number, (name, score) in enumerate(rows):
        table.add_row(
            Text(printable(name)),
            str(score.rollouts),
            str(score.scored),
            "–" if score.mean_reward is None else f"{score.mean_reward:.3f}",
            short(score.input_tokens),
            short(score.output_tokens),
            f"{score.seconds / score.rollouts:.2f}",
            end_section=len(summary.environments) > 1 and number == len(rows) - 2,
        )
    if summary.done:
        console.print(table)
    else:
        console.print(Text(f"run {summary.run}: {summary.status}; no rollout has ended"), soft_wrap=True)
    if summary.gave_up:
        console.print(Text(f"gave up: {printable(summary.gave_up)}", style="red"), soft_wrap=True)
    if summary.stopped_by:
        console.print(Text(f"stopped: {summary.stopped_by}", style="yellow"), soft_wrap=True)
        resume = f"{resume} runner.budget.{summary.stopped_by.limit}={summary.stopped_by.more}"
    for kind, count in summary.total.errors.most_common():
        example = printable(summary.total.examples[kind])
        console.print(Text(f"{count} × {kind}, such as {example}", style="red"), soft_wrap=True)
    folder = summary.folder
    say = [f"results  {folder / ROLLOUTS}", f"metrics  {folder / METRICS}"]
    look = f"{program} show {shlex.quote(str(folder))}"
    if summary.total.errors:
        [(kind, _)] = summary.total.errors.most_common(1)
        say.append(f"why      {look} {kind}")
    elif summary.done:
        say.append(f"look     {look}")
    if summary.done:
        say.append(f"report   {program} eval report {shlex.quote(str(folder))}")
    if summary.done < summary.planned:
        say.append(f"go on    {resume}")
    if summary.total.errors:
        say.append(f"again    {resume} runner.retry_failed=true")
    elif summary.done == summary.planned:
        say.append(f"next     {onward}")
    for line in say:
        console.print(Text(printable_lines(line)), soft_wrap=True)
