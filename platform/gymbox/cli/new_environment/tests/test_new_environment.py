"""The rewards of new_environment are right. Run by `pytest`, in this process."""

import asyncio
import json
from pathlib import Path

from gymbox_sandbox.trial import Trial

FOLDER = Path(__file__).resolve().parent.parent
ROWS = [json.loads(line) for line in (FOLDER / "data" / "example.jsonl").read_text().splitlines()]


def test_every_gold_run_scores() -> None:
    async def reward(row: dict[str, object]) -> float:
        trial = await Trial.begin(FOLDER / "server.py", row)
        await trial.gold()
        return await trial.reward()

    assert [asyncio.run(reward(row)) for row in ROWS] == [1.0] * len(ROWS)


def test_a_wrong_answer_does_not_score() -> None:
    async def reward() -> float:
        trial = await Trial.begin(FOLDER / "server.py", ROWS[0])
        trial.say("12345")
        return await trial.reward()

    assert asyncio.run(reward()) == 0.0
