"""Metrics file: error bars beside the scores, which stay as they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.evaluation.metrics_file import complete_metrics

from tests.unit.evaluation.conftest import line


def test_scores_get_error_bars_and_what_is_missing(run: Callable[..., Path]) -> None:
    folder = run(line("a", 0, 1.0), line("a", 1, 0.0), line("b", 0, 1.0), rows=3, repeats=2)
    before = json.loads((folder / "metrics.json").read_text())
    complete_metrics(folder)
    after = json.loads((folder / "metrics.json").read_text())
    for part, old in (("total", before["total"]), ("counter", before["environments"]["counter"])):
        new = after["total"] if part == "total" else after["environments"]["counter"]
        assert old.items() <= new.items()
        assert (new["tasks"], new["missing"], new["tasks_without_reward"]) == (3, 3, 1)
        assert (new["pass@1"], new["pass@2"], new["pass^2"], new["cost"]) == (0.75, 1.0, 0.0, None)
        assert new["std_err/reward"] > 0
        assert len(new["interval/reward"]) == 2
    assert after["policy"] == {"missing": "excluded", "success": 1.0, "level": 0.95}


def test_what_cannot_be_completed_is_logged(run: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    folder = run(line("a", 0, 1.0))
    (folder / "metrics.json").unlink()
    with caplog.at_level(logging.WARNING):
        complete_metrics(folder)
    assert "could not complete" in caplog.text
