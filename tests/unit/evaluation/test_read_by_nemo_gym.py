"""What we write in NeMo Gym's layout, its own code reads: same figures, nothing left to do but what failed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from gymbox.evaluation.nemo_writer import write_nemo
from gymbox.evaluation.rollouts import RunReader

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "benchmarks" / ".venv-nemo-gym" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="NeMo Gym is not installed: `make bench` does that")
def test_nemo_gym_makes_the_same_of_it(mixed: Path, tmp_path: Path) -> None:
    write_nemo(RunReader(mixed), tmp_path / "r.jsonl")
    script = Path(__file__).with_name("read_by_nemo_gym.py")
    done = subprocess.run(
        [PYTHON, script, tmp_path / "r.jsonl"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    ours = {
        each["agent_ref"]["name"]: each for each in json.loads((tmp_path / "r_aggregate_metrics.json").read_text())
    }
    assert set(told["aggregates"]) == set(ours) == set(told["agents"])
    for name, theirs in told["aggregates"].items():
        assert ours[name]["agent_metrics"] == pytest.approx(theirs["agent_metrics"])
        assert ours[name]["key_metrics"] == pytest.approx(theirs["key_metrics"])
        for mine, group in zip(ours[name]["group_level_metrics"], theirs["group_level_metrics"], strict=True):
            numbers = {key: value for key, value in group.items() if "/" in key}
            assert {key: value for key, value in mine.items() if "/" in key} == pytest.approx(numbers)
            assert mine["rollout_infos"] == group["rollout_infos"]
    assert (told["completion"]["expected_rollout_rows"], told["completion"]["completed_rollout_rows"]) == (6, 5)
    assert told["tasks"] == [[0, 0.625, 2], [1, 0.0, 1], [2, 1.0, 2]]
    assert told["left"] == []  # what failed is terminal
