"""Report: how a benchmark says what it measured: a table, a JSON file, and an exit code."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plot import plot

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
TICKS = 100.0
"""Clock ticks a second in /proc/stat (USER_HZ on Linux)."""


@dataclass(frozen=True)
class Figure:
    """One measured figure beside its baseline, and the bar that their ratio (or the value itself) must hold."""

    figure: str
    value: float | None
    """None: it could not be measured; `note` says why, and the bar counts as missed."""
    unit: str
    baseline: float | None
    baseline_name: str
    bar: str
    holds: bool
    note: str = ""
    used: float | None = None
    """How much of what its bar allows it takes: above 1 the bar is missed."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.value is not None and self.baseline else None


def at_least(times: float, figure: str, value: float | None, unit: str, baseline: float | None, name: str) -> Figure:
    """A figure whose bar is `value >= times * baseline`; a baseline that could not be had is a missed bar."""
    used = times * baseline / value if value and baseline is not None else None
    return Figure(figure, value, unit, baseline, name, f">= {times:g} x", _holds(used), used=used)


def at_most(times: float, figure: str, value: float | None, unit: str, baseline: float | None, name: str) -> Figure:
    """A figure whose bar is `value <= times * baseline`."""
    used = value / (times * baseline) if value is not None and baseline else None
    return Figure(figure, value, unit, baseline, name, f"<= {times:g} x", _holds(used), used=used)


def within(limit: float, figure: str, value: float | None, unit: str) -> Figure:
    """A figure whose bar is a number of its own."""
    holds = value is not None and value <= limit
    used = value / limit if value is not None and limit else None
    return Figure(figure, value, unit, None, "", f"<= {limit:g} {unit}", holds, used=used)


def reaching(limit: float, figure: str, value: float | None, unit: str) -> Figure:
    """A figure whose bar is a number of its own that it must reach."""
    used = limit / value if value else None
    return Figure(figure, value, unit, None, "", f">= {limit:g} {unit}", _holds(used), used=used)


def _holds(used: float | None) -> bool:
    return used is not None and used <= 1


def finish(name: str, figures: Sequence[Figure], notes: Sequence[str] = (), *, plotted: str = "") -> None:
    """Print the table, write `results/<name>.json` and, with this title, a plot into docs; leave with 1 where a bar is
    missed."""
    rows = [("figure", "value", "baseline", "ratio", "bar", "holds")]
    for one in figures:
        base = (
            f"{one.baseline:.4g} {one.unit} ({one.baseline_name})" if one.baseline is not None else one.baseline_name
        )
        value = f"{one.value:.4g} {one.unit}" if one.value is not None else "not measured"
        ratio = f"{one.ratio:.3g}" if one.ratio is not None else "-"
        rows.append((one.figure, value, base or "-", ratio, one.bar, "yes" if one.holds else "NO"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    for note in [*(f"{one.figure}: {one.note}" for one in figures if one.note), *notes]:
        print(f"note: {note}")
    RESULTS.mkdir(exist_ok=True)
    written = {
        "benchmark": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "figures": [{**asdict(one), "ratio": one.ratio} for one in figures],
        "notes": list(notes),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n")
    if plotted:
        (DOCS / f"{name}.svg").write_text(plot(plotted, figures))
    sys.exit(0 if all(one.holds for one in figures) else 1)


def machine_cpu_seconds() -> float:
    """CPU-seconds that this machine has spent so far on anything but idling (all processes, kernel included)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / TICKS


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None
