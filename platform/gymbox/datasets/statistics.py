"""Statistics: what is in a file of rows: fields, messages, tools, lengths, and how many rows are the same."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from gymbox.datasets.overlap import Duplicates
from gymbox.datasets.sources import Source, rows_of
from gymbox.datasets.texts import prompt_text
from gymbox.faults import Faults
from gymbox.row_check import PARAMS

_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}


class Statistics:
    """Counts over rows, which are added one by one."""

    def __init__(self) -> None:
        self.rows = 0
        self.duplicates = Duplicates()
        self._fields: dict[str, Counter[str]] = {}
        self._roles: Counter[str] = Counter()
        self._tools: Counter[str] = Counter()
        self._agents: Counter[str] = Counter()
        self._lengths = {
            name: array("Q") for name in ("messages", "tools_per_row", "prompt_characters", "prompt_words")
        }

    def add(self, fields: dict[str, Any], place: str) -> None:
        self.rows += 1
        self.duplicates.add(fields, place)
        self.count(fields)

    def count(self, fields: dict[str, Any]) -> None:
        """Count what is in a row, but not whether it is the same as another."""
        for name, value in fields.items():
            self._fields.setdefault(name, Counter())[_KINDS[type(value)]] += 1
        params = fields.get(PARAMS)
        params = params if isinstance(params, dict) else {}
        items, tools = params.get("input"), params.get("tools")
        items = items if isinstance(items, list) else [{"role": "user"}] if isinstance(items, str) else []
        self._roles.update(str(item.get("role") or item.get("type")) for item in items if isinstance(item, dict))
        tools = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        self._tools.update(str(tool.get("name", tool.get("type"))) for tool in tools)
        agent = fields.get("agent_ref")
        if isinstance(agent, dict):
            self._agents[str(agent.get("name"))] += 1
        text = prompt_text(fields)
        for name, length in zip(self._lengths, (len(items), len(tools), len(text), len(text.split())), strict=True):
            self._lengths[name].append(length)

    def as_json(self) -> dict[str, Any]:
        """All counts, JSON-ready; names in the order of the alphabet, so that the same rows give the same text."""
        return {
            "rows": self.rows,
            "fields": {
                name: {"rows": sum(kinds.values()), "kinds": dict(sorted(kinds.items()))}
                for name, kinds in sorted(self._fields.items())
            },
            "roles": dict(sorted(self._roles.items())),
            "tools": dict(sorted(self._tools.items())),
            "agents": dict(sorted(self._agents.items())),
            **{name: _spread(lengths) for name, lengths in self._lengths.items()},
            "duplicates": self.duplicates.as_json(),
        }


def statistics_of(source: Source, faults: Faults) -> Statistics:
    """Statistics of a whole source; rows that cannot be read are told in `faults`."""
    found = Statistics()
    for row in rows_of(source, faults):
        found.add(row.fields, f"{source.name}:{row.line}")
    return found


def _spread(lengths: array[int]) -> dict[str, float]:
    """Least, median, 95th percentile (by nearest rank, so that they are lengths that occur), greatest, and mean."""
    if not lengths:
        return {}
    ranked = sorted(lengths)
    at = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}
    ranks = {name: ranked[max(0, -(-int(share * 100) * len(ranked) // 100) - 1)] for name, share in at.items()}
    return {**ranks, "mean": round(sum(ranked) / len(ranked), 3)}
