"""Runs on disk, as those of evaluations; and reports on them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.evaluation.rollouts import RunReader
from gymbox.reports.files import write_report
from gymbox.reports.report import Report

from tests.unit.evaluation.conftest import line, run

__all__ = ["line", "run"]


def embedded(page: str, name: str) -> Any:
    """What a page has packed under a name."""
    found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    assert found, f"{name} is not in the page"
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def trajectories(page: str, number: int = 0) -> dict[str, Any]:
    """By id of their rollout, those that a page has of a run; None of those that had no room."""
    rows = embedded(page, f"rows-{number}")
    found = {}
    for id, chunk, place in zip(rows["id"], rows["chunk"], rows["place"], strict=True):
        found[id] = embedded(page, f"chunk-{number}-{chunk}")[place] if chunk >= 0 else None
    return found


@pytest.fixture
def reported(tmp_path: Path) -> Callable[..., tuple[Report, str]]:
    """Report on runs; the report, and its page."""

    def make(*runs: Path, **options: Any) -> tuple[Report, str]:
        path = tmp_path / "report.html"
        report = write_report([RunReader(run) for run in runs], {"html": path}, **options)
        return report, path.read_text()

    return make
