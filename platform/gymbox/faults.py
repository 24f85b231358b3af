"""Faults: what is wrong in a dataset, each with its place, its reason and its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

SHOWN_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in one row, and how to mend it."""

    path: Path
    line: int
    field: str
    reason: str
    remedy: str
    earlier: int | None = None
    """The line that this one collides with, where that is what is wrong."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.field}: {self.reason}; {self.remedy}"


@dataclass(slots=True)
class Faults:
    """All faults found, of which the first `SHOWN_FAULTS` are kept for display."""

    shown: list[Fault] = field(default_factory=list)
    count: int = 0

    def add(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self.count += 1
            if len(self.shown) < SHOWN_FAULTS:
                self.shown.append(fault)

    def join(self, other: Faults, lines: int) -> None:
        """Take over those of a part of the file that begins after so many lines."""
        self.count += other.count
        moved = [replace(fault, line=fault.line + lines) for fault in other.shown]
        self.shown += moved[: SHOWN_FAULTS - len(self.shown)]

    def __str__(self) -> str:
        more = f"\n  … and {self.count - len(self.shown)} more" if self.count > len(self.shown) else ""
        faults = "1 fault" if self.count == 1 else f"{self.count} faults"
        listed = "\n".join(f"  {fault}" for fault in self.shown)
        return f"{faults} in the dataset, so nothing was started:\n{listed}{more}"
