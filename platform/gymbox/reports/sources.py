"""Sources: a run read once for a report, for its figures and for a row of each of its rollouts."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.evaluation.compare import Comparison
from gymbox.evaluation.own_metrics import having_own_metrics, key_metrics, own_metrics
from gymbox.evaluation.parts import agent_of
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.evaluation.summary import SUCCESS, Summary, summary
from gymbox.evaluation.tallies import Missing
from gymbox.reports.judgements import JudgeCalls
from gymbox.reports.plots import Point, plots_of
from gymbox.reports.recorded import LastCalls
from gymbox.reports.report import ALL, RunReport
from gymbox.reports.trajectories import opening
from gymbox.results import FAILURES

NUMBERS = (
    *("repeat", "reward", "seconds", "input_tokens", "output_tokens", "cost", "turns", "tool_calls", "tool_errors"),
    *("attempts", "began", "number"),
)
"""Fields of a rollout that its row has; what is unknown is null."""
PREVIEW = 160
"""Characters of a task's prompt, and of an error, that can be searched without opening the rollout."""


class Rows:
    """A row for each rollout, by column. Some hundred bytes each, whatever their lines hold."""

    def __init__(self, *, by_agent: bool = False) -> None:
        """
        Args:
            by_agent: whether agents are told apart: then what each made of a task is a task of its own.
        """
        self.environments: dict[str, int] = {}
        self.agents: dict[str, int] = {}
        """Empty where they are not told apart."""
        self.errors: dict[str, int] = {}
        self.tasks: dict[tuple[int, int, str], int] = {}
        """By environment, agent (-1: not told apart) and name."""
        self.previews: list[str] = []
        """Of tasks: how what they ask begins."""
        self.task, self.error, self.aside = array("q"), array("q"), bytearray()
        self.offsets, self.among_failures = array("q"), bytearray()
        self.ids: list[str] = []
        self.details: dict[int, str] = {}
        self.columns = {name: array("d") for name in NUMBERS}
        self._by_agent = by_agent

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, rollout: Rollout, *, aside: bool = False) -> None:
        """Take down what the row shows; `aside`: its line stands in `failures.jsonl`."""
        environment = self.environments.setdefault(rollout.environment, len(self.environments))
        agent = self.agents.setdefault(agent_of(rollout), len(self.agents)) if self._by_agent else -1
        key = (environment, agent, rollout.task)
        if key not in self.tasks:
            self.tasks[key] = len(self.tasks)
            self.previews.append(opening(rollout.line, PREVIEW))
        if rollout.error is not None:
            self.details[len(self.ids)] = rollout.detail[:PREVIEW]
        kind = rollout.error if rollout.reward is None else None
        if rollout.reward is None and kind is None:
            kind = "no_reward"
        self.task.append(self.tasks[key])
        self.error.append(-1 if kind is None else self.errors.setdefault(kind, len(self.errors)))
        self.aside.append(aside)
        self.offsets.append(rollout.offset)
        self.among_failures.append(rollout.among_failures)
        self.ids.append(rollout.id)
        for name, column in self.columns.items():
            value = getattr(rollout, name)
            column.append(float("nan") if value is None else value)

    def points(self, environment: str = ALL, agent: str = ALL) -> Iterator[Point]:
        """What is drawn of those that count, of one environment or of all, and of one agent or of all."""
        place, by = self.environments.get(environment), self.agents.get(agent)
        wanted = [(environment == ALL or key[0] == place) and (agent == ALL or key[1] == by) for key in self.tasks]
        for row, task in enumerate(self.task):
            if wanted[task] and not self.aside[row]:
                spent = [self._at(name, row) for name in ("input_tokens", "output_tokens")]
                known = [each for each in spent if each is not None]
                yield Point(
                    reward=self._at("reward", row),
                    failed=self.error[row] >= 0,
                    cost=self._at("cost", row),
                    tokens=sum(known) if known else None,
                    began=self._at("began", row),
                    seconds=self._at("seconds", row),
                )

    def by_priority(self) -> list[int]:
        """The rows in the order in which their trajectories get room in a page: failures, then one try of each task,
        then another; at last what was set aside."""
        tried: dict[int, int] = {}
        ranks: list[tuple[int, int]] = []
        for row, task in enumerate(self.task):
            tried[task] = tried.get(task, 0) + 1
            failed = self.error[row] >= 0
            ranks.append((1 << 32 if self.aside[row] else 0 if failed else tried[task], row))
        return [row for _, row in sorted(ranks)]

    def told(self) -> dict[str, Any]:
        """As the page reads it: plain JSON."""
        columns = {name: [_short(value) for value in column] for name, column in self.columns.items()}
        return {
            "environments": list(self.environments),
            "agents": list(self.agents),
            "errors": list(self.errors),
            "tasks": [
                [environment, task, preview, *([agent] if self._by_agent else [])]
                for (environment, agent, task), preview in zip(self.tasks, self.previews, strict=True)
            ],
            "task": list(self.task),
            "error": list(self.error),
            "aside": list(self.aside),
            "id": self.ids,
            "details": self.details,
            **columns,
        }

    def _at(self, name: str, row: int) -> float | None:
        value = self.columns[name][row]
        return None if value != value else value


class Source:
    """A run read for a report. Its rows have its rollouts in the order of their lines, then those that were set
    aside."""

    def __init__(
        self,
        reader: RunReader,
        *,
        missing: Missing = "excluded",
        success: float = SUCCESS,
        level: float = 0.95,
        ks: Sequence[int] = (),
        by: str | None = None,
    ) -> None:
        """
        Raises:
            ConfigError: a line is damaged.
        """
        self.rows = Rows(by_agent=bool(reader.agents))
        self._lost: set[str] = set()
        """Attempts that left no response."""
        self._plain, self._reader = reader, _Watched(reader, self._take)
        self.summary: Summary = summary(
            self._reader, missing=missing, success=success, level=level, ks=ks, by=by, tasks=True
        )
        self._aside: RunReader | None = None
        self.counted = len(self.rows)
        path = reader.path / FAILURES
        if path.is_file() and path.stat().st_size:
            self._aside = RunReader(path)
            for rollout in self._aside:
                if reader.agent is None or rollout.agent == reader.agent:
                    self._take(rollout, aside=True)
        self.recorded = LastCalls(reader.path, self._lost)

    @cached_property
    def judged(self) -> JudgeCalls:
        """What was recorded of the run's judge, looked for when it is first needed."""
        return JudgeCalls(self._plain.path)

    def _take(self, rollout: Rollout, *, aside: bool = False) -> None:
        self.rows.add(rollout, aside=aside)
        attempt = rollout.line.get("sandbox")
        if rollout.line.get("response") is None and isinstance(attempt, str):
            self._lost.add(attempt)

    def report(
        self, name: str, environments: Mapping[str, Environment], *, own: bool, compared: Comparison | None
    ) -> RunReport:
        """What it says of the run.

        Args:
            environments: those whose manifests tell key metrics.
            own: also have the `compute_metrics` of those that have any.
            compared: its agents with one another.

        Raises:
            ConfigError: see `own_metrics`.
        """
        # not of one that has no rollout here, as may be in a comparison: it would be computed of nothing
        counts = {each: figures.rollouts for each, figures in self.summary.environments.items()}
        done = {each: found for each, found in environments.items() if counts.get(each)}
        more = {each: own_metrics(done[each], self._plain) for each in having_own_metrics(done)} if own else {}
        manifest = self._reader.manifest
        names = [ALL, *self.rows.environments] if len(self.rows.environments) > 1 else [ALL]
        return RunReport(
            name=name,
            agent=self._reader.agent,
            status=manifest.status if manifest else None,
            started_at=manifest.started_at if manifest else None,
            ended_at=manifest.ended_at if manifest else None,
            facts=facts(manifest.model_dump(mode="json")) if manifest else {},
            summary=self.summary,
            plots={each: plots_of(list(self.rows.points(each))) for each in names},
            agent_plots={
                agent: {each: plots_of(list(self.rows.points(each, agent))) for each in names}
                for agent in self._reader.agents
            },
            agents=compared,
            key_metrics={
                each: key
                for each, found in done.items()
                if (key := key_metrics(found, self.summary.environments[each], more))
            },
            own_metrics=more,
            set_aside=len(self.rows) - self.counted,
        )

    def lines(self, rows: Sequence[int]) -> Iterator[tuple[int, Rollout, str]]:
        """These rows' rollouts, read anew from their lines one after the other, and the name of the file they are in.

        Raises:
            ConfigError: the file has changed since its rows were read.
        """
        for row in rows:
            reader = self._aside if self.rows.aside[row] else self._reader
            assert reader is not None
            number, failed = int(self.rows.columns["number"][row]), bool(self.rows.among_failures[row])
            path = reader.nemo.failures if failed and reader.nemo else reader.file
            try:
                rollout = reader.reread(self.rows.offsets[row], number, among_failures=failed)
                if rollout.id != self.rows.ids[row]:
                    raise ValueError(rollout.id)
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                raise ConfigError(f"{path} was changed while it was read; make the report again") from error
            yield row, rollout, path.name


class _Watched(RunReader):
    """A reader whose rollouts someone else sees, too."""

    def __init__(self, reader: RunReader, take: Callable[[Rollout], None]) -> None:
        super().__init__(reader.path, reader.agent, names=reader.names)
        self._take = take

    def __iter__(self) -> Iterator[Rollout]:
        for rollout in super().__iter__():
            self._take(rollout)
            yield rollout


def facts(manifest: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Names with dots, and what they have; without what is null or empty."""
    found: dict[str, str] = {}
    for name, value in manifest.items():
        if isinstance(value, dict):
            found |= facts(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _short(value: float) -> float | int | None:
    """With as many digits as anyone reads, which saves a third of the page; null for what is unknown."""
    if value != value:
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return round(value, 3) if abs(value) >= 1e6 else float(f"{value:.6g}")
