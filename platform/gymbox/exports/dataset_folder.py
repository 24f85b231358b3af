"""Dataset folder: rollouts as a dataset that `datasets.load_dataset` reads, with a card, ready to be published.

FOLDER/README.md           what `load_dataset` finds the data by; runs, figures, license
FOLDER/rollouts.parquet    see `rollout_table`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from gymbox.datasets.card import CARD
from gymbox.datasets.files import Written, digest_of, new_folder
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary
from gymbox.exports.rollout_table import run_name, write_table

DATA = "rollouts.parquet"
SPLIT = "train"
"""What Hugging Face calls data that is in no other split."""


def export_folder(
    runs: Sequence[RunReader], output: Path, *, rows: bool = False, license: str | None = None
) -> Written:
    """Write the rollouts of some runs to a new folder.

    Args:
        rows: with the rows' own fields, which hold what only the verifier may see.
        license: of the whole, by its SPDX name; `gymbox dataset upload` wants one.

    Raises:
        ConfigError: a run is damaged or holds no rollouts, or the folder is there already; nothing is half written.
    """
    with new_folder(output) as beside:
        count = write_table(runs, beside / DATA, rows=rows)
        (beside / CARD).write_text(_card(runs, license), encoding="utf-8")
        return Written(output / DATA, count, digest_of(beside / DATA))


def _card(runs: Sequence[RunReader], license: str | None) -> str:
    files = [{"split": SPLIT, "path": DATA}]
    about = {"license": license} if license else {}
    front = yaml.safe_dump(
        {**about, "tags": ["gymbox"], "configs": [{"config_name": "default", "data_files": files}]}, sort_keys=False
    )
    lines = []
    for run in runs:
        found = summary(run)
        for name, each in found.environments.items():
            mean = "unknown" if each.mean is None else f"{each.mean:.4g}"
            lines.append(f"| {run_name(run)} | {name} | {each.tasks} | {each.rollouts} | {each.missing} | {mean} |")
    table = ["| run | environment | tasks | rollouts | without a reward | mean reward |", "|---|---|---|---|---|---|"]
    text = "Rollouts of LLM agents, written by gymbox. A reward that is null is unknown, not 0."
    return "\n".join([f"---\n{front}---\n", "# Rollouts\n", f"{text}\n", *table, *lines, ""])
