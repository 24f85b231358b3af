"""NeMo Gym's aggregates: what its `_aggregate_metrics.json` tells, by its definitions (NeMo Gym 0.4.0,
`reward_profile`): of every number at the top of a line, and of its usage, mean, max, min, median and sample deviation,
by agent and by task."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import IO, Any

from gymbox.evaluation import formulas
from gymbox.evaluation.nemo_layout import REPEAT, TASK
from gymbox.evaluation.rollouts import countable

_SAMPLE = {"agent_ref": {"name": "agent"}}
"""What stands there for a task's row."""


class Aggregates:
    """Takes lines in NeMo Gym's layout, keeps their numbers (8 bytes each), and writes the file."""

    def __init__(self) -> None:
        self._agents: dict[str, _Table] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a line that has a reward."""
        self._agents.setdefault(line["agent_ref"]["name"], _Table()).add(line)

    def write(self, file: IO[str], expected: Mapping[int, int]) -> None:
        """
        Args:
            expected: by task, the rollouts there should be.
        """
        file.write("[")
        for number, (name, table) in enumerate(self._agents.items()):
            figures = table.figures(range(len(table)))
            key = {name: value for name, value in figures.items() if name.startswith("mean/")}
            told = {"agent_ref": {"name": name}, "agent_metrics": figures, "key_metrics": key}
            file.write(("," if number else "") + json.dumps(told, indent=2)[:-2] + ',\n  "group_level_metrics": [')
            for place, group in enumerate(table.groups(expected)):
                file.write((",\n" if place else "\n") + json.dumps(group))
            file.write("]\n}")
        file.write("]\n")


class _Table:
    """The numbers of an agent's lines, a column each; nan where a line has none."""

    def __init__(self) -> None:
        self._tasks, self._repeats = array("q"), array("q")
        self._columns: dict[str, array[float]] = {}
        self._fractions: set[str] = set()
        """Columns that are not of integers only."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, line: Mapping[str, Any]) -> None:
        usage = (line.get("response") or {}).get("usage") or {}
        for name, value in {**line, **usage}.items():
            if countable(value) is not None and name not in (TASK, REPEAT):
                column = self._columns.setdefault(name, array("d", [math.nan]) * len(self))
                column.append(value)
                if isinstance(value, float):
                    self._fractions.add(name)
        self._tasks.append(line[TASK])
        self._repeats.append(line[REPEAT])
        for column in self._columns.values():
            if len(column) < len(self):
                column.append(math.nan)

    def groups(self, expected: Mapping[int, int]) -> Iterator[dict[str, Any]]:
        """An entry a task."""
        order = sorted(range(len(self)), key=lambda row: (self._tasks[row], self._repeats[row]))
        for task, rows in groupby(order, key=self._tasks.__getitem__):
            listed = list(rows)
            planned = max(expected.get(task, 0), len(listed))
            yield {
                TASK: task,
                **self.figures(listed),
                "sample": _SAMPLE,
                "num_rollouts": len(listed),
                "expected_num_rollouts": planned,
                "missing_num_rollouts": planned - len(listed),
                "reward_profile_completion_pct": 100.0 * len(listed) / planned,
                "rollout_infos": [self._told(row) for row in listed],
            }

    def _told(self, row: int) -> dict[str, Any]:
        task, repeat = self._tasks[row], self._repeats[row]
        numbers = {name: self._value(name, column[row]) for name, column in self._columns.items()}
        known = {name: value for name, value in numbers.items() if value is not None}
        return {"rollout_id": f"{task}:{repeat}", TASK: task, REPEAT: repeat, **known}

    def _value(self, name: str, value: float) -> float | int | None:
        if math.isnan(value):
            return None
        return value if name in self._fractions else int(value)

    def figures(self, rows: Iterable[int]) -> dict[str, Any]:
        """Of some lines; a number that none of them has is left out."""
        listed = list(rows)
        known = {
            name: found
            for name, column in self._columns.items()
            if (found := [value for row in listed if not math.isnan(value := column[row])])
        }
        deviations = {name: formulas.deviation(values) for name, values in known.items()}
        if not any(value is not None for value in deviations.values()):
            deviations = {name: 0.0 for name, values in known.items() if len(values) == len(listed)}
        each: dict[str, Callable[[list[float]], float | None]] = {
            "mean": formulas.mean,
            "max": max,
            "min": min,
            "median": formulas.median,
        }
        told: dict[str, Any] = {
            f"{called}/{name}": figure(values) for called, figure in each.items() for name, values in known.items()
        }
        return told | {f"std/{name}": value for name, value in deviations.items() if value is not None}
