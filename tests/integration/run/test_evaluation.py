"""`gymbox eval` on real runs: figures beside the scores, and rewards made anew in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from .conftest import PATIENCE, Ended, Gymbox

GYMBOX_COMMAND = Path(sys.executable).with_name("gymbox")


async def evaluated(gymbox: Gymbox, *arguments: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        str(GYMBOX_COMMAND),
        "eval",
        *arguments,
        cwd=gymbox.folder,
        env={**os.environ, "HOME": str(gymbox.folder), "XDG_CONFIG_HOME": str(gymbox.folder / "config")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


def spoiled(folder: Path) -> None:
    """Give the first line a reward that its answer does not deserve, and the second a judge that failed."""
    path = folder / "rollouts.jsonl"
    first, second, *others = [json.loads(line) for line in path.read_text().splitlines()]
    first["reward"] = 0.25
    second["reward"] = None
    second["error"] = {"stage": "verify", "kind": "judge_failed", "detail": "x", "retryable": True, "logs": ""}
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second, *others)))


async def test_rewards_are_made_anew_and_compared(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=short_answers", "model=scripted", "judge=scripted", "provider=process", "runner.limit=4",
        "runner.output=old",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    spoiled(gymbox.folder / "old")
    ended = await evaluated(gymbox, "reverify", "old", "-o", "new", "--json", "provider=process", "judge=scripted")
    assert ended.code == 0, ended.err
    changes: dict[str, Any] = json.loads(ended.out)
    assert (changes["verified"], len(changes["changed"]), changes["unsafe"]) == (4, 2, False)
    assert {line["reward"] for line in gymbox.lines("new")} == {1.0}
    assert gymbox.lines("old")[0]["reward"] == 0.25
    assert gymbox.read("new", "metrics.json")["total"]["pass@1"] == 1.0
    ended = await evaluated(gymbox, "compare", "old", "new", "--fail-if-worse", "--json")
    assert ended.code == 0, ended.err
    [difference] = json.loads(ended.out)["differences"]
    assert (difference["paired"], difference["left_out"], len(difference["better"])) == (3, 1, 1)
    ended = await evaluated(gymbox, "metrics", "new")
    assert "mean reward           1 " in ended.out


async def test_what_a_sandbox_held_cannot_be_scored_again(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=counter", "model=scripted", "provider=process", "runner.limit=2", "runner.output=old"
    )
    assert ended.code == 0, ended.err
    assert gymbox.read("old", "metrics.json")["total"]["std_err/reward"] == 0.0
    refused = await evaluated(gymbox, "reverify", "old", "-o", "new", "provider=process")
    assert refused.code == 2
    assert "reverify: stateless" in refused.err
    forced = await evaluated(gymbox, "reverify", "old", "-o", "new", "--force", "provider=process")
    assert forced.code == 0, forced.err
    assert "unsafe_new: 2 of 2 rollouts; 2 scored anew, 2 changed, 0 copied  (unsafe" in forced.out
    assert all(line["reverified"]["unsafe"] for line in gymbox.lines("unsafe_new"))


async def test_a_run_tells_how_to_have_a_page_about_it(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=counter,weather", "model=scripted", "provider=process", "runner.limit=2", "runner.repeats=2",
        "runner.output=old",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    [command] = [line for line in ended.out.splitlines() if line.startswith("report ")]
    assert await gymbox.shell(f"{command.removeprefix('report')} --format all") == 0
    assert (gymbox.folder / "old" / "report.html").read_text().endswith("</html>\n")
    [run] = gymbox.read("old", "report.json")["runs"]
    assert run["summary"]["total"]["scored"] == 8
    assert sum(run["plots"][""]["timeline"]["scored"]) == 8
    assert sum(run["plots"]["weather"]["rewards"]["counts"]) == 4
