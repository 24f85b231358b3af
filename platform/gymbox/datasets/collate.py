"""Collate: rows of several files put together by split, each row with its agent, with a card and statistics beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any

from gymbox.datasets.card import CARD, agreed_license, card_text
from gymbox.datasets.files import Written, new_folder
from gymbox.datasets.overlap import SHOWN, Contamination, contamination
from gymbox.datasets.shapes import Shaping
from gymbox.datasets.sources import HUB, Source
from gymbox.datasets.statistics import Statistics
from gymbox.datasets.tasks import changed_rows, refuse, task_file
from gymbox.errors import ConfigError
from gymbox.faults import Fault, Faults


class OnDuplicates(StrEnum):
    """What becomes of a row that is the same as an earlier one of its split."""

    KEEP = "keep"
    """It is kept, and counted."""
    DROP_EXACT = "drop-exact"
    """It is left out if it is exactly the same."""
    DROP_NORMALISED = "drop-normalised"
    """It is left out if it is the same but for case, white space and Unicode's forms."""
    REFUSE = "refuse"
    """Nothing is written if there is one that is the same, normalised."""


@dataclass(frozen=True, slots=True)
class Collation:
    """How rows are put together."""

    shaping: Shaping = Shaping()
    agent: str | None = None
    """Name of the agent for rows that name none (`agent_ref`)."""
    repeats: int = 1
    """How often each row is written; copies of a row with an `id` get `ID.2`, `ID.3`, …"""
    on_duplicates: OnDuplicates = OnDuplicates.KEEP
    license: str | None = None
    """Of the whole; None: what is said beside the files."""
    hidden_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Collected:
    """What was written."""

    license: str
    splits: list[Written]
    dropped: dict[str, int]
    """Rows left out as duplicates, of each split."""
    contamination: list[Contamination]
    """Of each split by each split before it."""


def collate(parts: Mapping[str, Sequence[Source]], collation: Collation, folder: Path) -> Collected:
    """Write `folder`: SPLIT.jsonl and SPLIT_metrics.json for each split, and a card. All of it or nothing.

    Raises:
        ConfigError: with every fault of every row, or because the license is unknown.
    """
    local = [source.path for sources in parts.values() for source in sources if not source.name.startswith(HUB)]
    far = [source.name for sources in parts.values() for source in sources if source.name.startswith(HUB)]
    if far and collation.license is None:
        raise ConfigError(f"{far[0]}: read its license on the Hub, and name it with --license")
    license = agreed_license(local, collation.license)
    if collation.repeats < 1:
        raise ConfigError(f"{collation.repeats} repeats: each row must be written once at least")
    with new_folder(folder) as beside:
        written: list[Written] = []
        dropped: dict[str, int] = {}
        faults = Faults()
        for split, sources in parts.items():
            file, dropped[split] = _split(split, sources, collation, beside, faults)
            written.append(Written(folder / file.path.name, file.rows, file.sha256))
        # each split is judged by those before it: train comes first
        overlaps = [
            contamination(Source(str(beside / f"{later}.jsonl")), Source(str(beside / f"{earlier}.jsonl")))
            for earlier, later in combinations(parts, 2)
        ]
        notes = [
            f"{later} by {earlier}: {overlap.contaminated} of {overlap.rows} rows contaminated "
            f"({overlap.prompts} prompts the same, {overlap.overlapping} with {overlap.threshold:.0%} of their "
            f"{overlap.ngram}-grams)."
            for (earlier, later), overlap in zip(combinations(parts, 2), overlaps, strict=True)
        ]
        (beside / CARD).write_text(card_text(license, written, notes), encoding="utf-8")
        return Collected(license, written, dropped, overlaps)


def _split(
    split: str, sources: Sequence[Source], collation: Collation, folder: Path, faults: Faults
) -> tuple[Written, int]:
    statistics, dropped, left_out = Statistics(), 0, list[str]()
    target = folder / f"{split}.jsonl"
    with task_file(target, faults) as file:
        for source in sources:
            for row, task in changed_rows(source, collation.shaping.task, faults):
                place = f"{source.name}:{row.line}"
                same = statistics.duplicates.add(task, place)
                if "normalised" in same and collation.on_duplicates is OnDuplicates.REFUSE:
                    remedy = f"take it out, or leave it to --duplicates {OnDuplicates.DROP_NORMALISED}"
                    faults.add([Fault(Path(source.name), row.line, "(row)", "is the same as an earlier one", remedy)])
                if (
                    "exact" in same
                    and collation.on_duplicates is OnDuplicates.DROP_EXACT
                    or "normalised" in same
                    and collation.on_duplicates is OnDuplicates.DROP_NORMALISED
                ):
                    dropped += 1
                    left_out += [place] if len(left_out) < SHOWN else []
                    continue
                for repeat in range(1, collation.repeats + 1):
                    fields = _for_agent(_copy(task, repeat), collation.agent)
                    file.add(source, row, fields)
                    statistics.rows += 1
                    statistics.count(fields)
        index = file.finish(collation.hidden_fields)
    about = {**statistics.as_json(), "sha256": index.sha256, "dropped": {"rows": dropped, "first": left_out}}
    text = json.dumps(about, indent=2, ensure_ascii=False)
    (folder / f"{split}_metrics.json").write_text(f"{text}\n", encoding="utf-8")
    refuse(faults)
    return Written(target, file.rows, index.sha256), dropped


def _copy(task: dict[str, Any], repeat: int) -> dict[str, Any]:
    return {**task, "id": f"{task['id']}.{repeat}"} if repeat > 1 and "id" in task else task


def _for_agent(task: dict[str, Any], agent: str | None) -> dict[str, Any]:
    if agent is None or "agent_ref" in task:
        return task
    return {**task, "agent_ref": {"type": "responses_api_agents", "name": agent}}
