"""Evaluations by Inspect itself, with sandboxes as processes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.own_venv import interpreter_with, ran

EVAL = Path(__file__).with_name("inspect_eval.py")


async def test_inspect_finds_the_provider_and_evaluates_in_it(tmp_path: Path) -> None:
    told = json.loads((await ran(interpreter_with("inspect"), str(EVAL), str(tmp_path), "process")).splitlines()[-1])
    for evaluated, kind in zip(told, ("eval", "file"), strict=True):
        assert evaluated["scores"] == ["C", "I"]
        assert [each["said"] for each in evaluated["samples"]] == [f"hello {kind}\n"] * 2
        assert evaluated["samples"][0]["command"].startswith("gymbox sandbox shell plain-")
