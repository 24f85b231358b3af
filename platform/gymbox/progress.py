"""Progress: what a run shows while it goes on, and what it says at its end."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from gymbox.results import METRICS, ROLLOUTS, RunFolder
from gymbox.rollout import RolloutResult
from gymbox.runner import Plan, Slot, Summary

PLAIN_INTERVAL = 10.0
"""Seconds between two lines where the output is no terminal."""
TOTAL = "(all)"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, limit: int = 300) -> str:
    """One line that can do nothing to a terminal: control, direction and broken characters are shown as escapes."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), cut)


@dataclass
class _Count:
    """The figures of one line."""

    planned: int
    done: int = 0
    running: int = 0
    scored: int = 0
    reward: float = 0.0
    tokens: int = 0

    def text(self) -> str:
        mean = f"{self.reward / self.scored:.3f}" if self.scored else "–"
        failed = self.done - self.scored
        return f"{self.running} running · {failed} failed · reward {mean} · {short(self.tokens)} tokens"


def short(number: int) -> str:
    """`950`, `12.3k`, `4.5M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


@dataclass
class Progress:
    """Shows a run on `console`: live where that is a terminal, else a line now and then. Used as `with`."""

    console: Console
    plan: Plan
    folder: RunFolder
    sandboxes: Callable[[], int] | None = None
    """How many there are now, where that is known."""
    clock: Callable[[], float] = time.monotonic
    counts: dict[str, _Count] = field(default_factory=dict, init=False)
    kinds: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.counts = {name: _Count(planned) for name, planned in self.plan.sizes().items()}
        self.counts[TOTAL] = _Count(len(self.plan))
        for name, score in (*self.folder.scores.items(), (TOTAL, self.folder.total)):
            count = self.counts[name]
            count.done, count.scored, count.reward = score.rollouts, score.scored, score.reward_sum
            count.tokens = score.input_tokens + score.output_tokens
        self._began = self._told = self.clock()
        self._before = self.counts[TOTAL].done
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Figures(self),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            refresh_per_second=4,
        )
        shown = [TOTAL] if len(self.counts) == 2 else list(self.counts)
        self._rows = {name: self._bars.add_task(name, total=self.counts[name].planned) for name in shown}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, slot: Slot) -> None:
        for name in (slot.environment.name, TOTAL):
            self.counts[name].running += 1

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        for name in (slot.environment.name, TOTAL):
            count = self.counts[name]
            count.running -= 1
            if result is None:
                continue
            count.done += 1
            if result.reward is not None:
                count.scored += 1
                count.reward += result.reward
            if result.response is not None and result.response.usage is not None:
                count.tokens += result.response.usage.input_tokens + result.response.usage.output_tokens
            if name in self._rows:
                self._bars.update(self._rows[name], completed=count.done)
        if result is not None:
            self._tell_first(result)
            self._tell_now_and_then()

    def figures(self, name: str) -> str:
        """The figures of one line."""
        text = self.counts[name].text()
        return f"{text} · {self.sandboxes()} sandboxes" if name == TOTAL and self.sandboxes else text

    def _tell_first(self, result: RolloutResult) -> None:
        """The first failure of each kind at once, so that nobody waits an hour to learn of a wrong key."""
        if result.error is None:
            return
        self.kinds[result.error.kind] += 1
        if self.kinds[result.error.kind] == 1:
            task = printable(result.task_id, 60)
            where = f"{result.environment} task {task}, {result.error.stage}"
            text = f"first {result.error.kind} ({where}): {printable(result.error.detail)}"
            last_words = result.error.logs.strip().rpartition("\n")[2]
            if last_words:
                text += f"\n  its log ends with: {printable(last_words)}"
            self.console.print(Text(text, style="red"), soft_wrap=True)

    def _tell_now_and_then(self) -> None:
        total = self.counts[TOTAL]
        now = self.clock()
        if self.console.is_terminal or (now - self._told < PLAIN_INTERVAL and total.done < total.planned):
            return
        self._told = now
        rate = (total.done - self._before) / max(now - self._began, 1e-9)
        left = f" · {duration((total.planned - total.done) / rate)} left" if total.done < total.planned else ""
        self.console.print(Text(f"{total.done}/{total.planned} done · {self.figures(TOTAL)}{left}"), soft_wrap=True)


class _Figures(ProgressColumn):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress.figures(task.description))


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def show(summary: Summary, console: Console, resume: str) -> None:
    """The table at the end, where the results are, and what to do next; `resume` is the command to go on with."""
    table = Table(title=f"run {summary.run}: {summary.status}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("environment", no_wrap=True)
    for heading in ("rollouts", "scored", "reward", "tokens in", "out", "s each"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = dict(sorted(summary.environments.items()))
    if len(rows) > 1:
        rows[TOTAL] = summary.total
    for name, score in rows.items():
        table.add_row(
            name,
            str(score.rollouts),
            str(score.scored),
            "–" if score.mean_reward is None else f"{score.mean_reward:.3f}",
            short(score.input_tokens),
            short(score.output_tokens),
            f"{score.seconds / score.rollouts:.2f}",
            end_section=len(rows) > 1 and name == list(rows)[-2],
        )
    console.print(table)
    for kind, count in summary.total.errors.most_common():
        example = printable(summary.total.examples[kind])
        console.print(Text(f"{count} × {kind}, such as {example}", style="red"), soft_wrap=True)
    folder = summary.folder
    say = [f"results  {folder / ROLLOUTS}", f"metrics  {folder / METRICS}"]
    if summary.done < summary.planned:
        say.append(f"go on    {resume}")
    elif summary.total.errors:
        kind = next(iter(summary.total.errors))
        say.append(f"why      grep -m 1 {kind} {shlex.quote(str(folder / ROLLOUTS))} | python -m json.tool")
    else:
        say.append("next     gymbox run … model=openai model.name=NAME model.base_url=URL runner.repeats=4")
    for line in say:
        console.print(Text(line), soft_wrap=True)
