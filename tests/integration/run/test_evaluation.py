"""`gymbox eval` on real runs: figures beside the scores, and rewards made anew in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

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


NOTES = """
from gymbox_sandbox import ResourcesServer, tool


class Notes(ResourcesServer):
    @tool
    async def write(self, text: str) -> str:
        \"\"\"Write the answer down.

        Args:
            text: All of it.
        \"\"\"
        result = await self.exec("mkdir -p out && tee out/answer.txt > noise", stdin=text)
        return "Written." if result.exit_code == 0 else result.stderr

    async def verify(self, task, response):
        listed = await self.exec("cat out/answer.txt; ls")
        return listed.stdout == f"{task.verifier_metadata['answer']}\\nout\\n"
"""


def notes(folder: Path) -> Path:
    """An environment that is scored by a file in its workspace; beside that there must be nothing."""
    place = folder / "notes"
    (place / "data").mkdir(parents=True)
    told = "description: Write.\nverify: fresh\nreverify: artifacts\nartifacts: ['out/*.txt']\n"
    (place / "environment.yaml").write_text(told)
    (place / "server.py").write_text(NOTES)
    rows = []
    for id, written in (("right", "42\n"), ("spaced", " 42\n"), ("silent", None)):
        call = {"type": "function_call", "call_id": "c", "name": "write", "arguments": json.dumps({"text": written})}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
        replies = [[call], [said]] if written else [[said]]
        row = {"id": id, "responses_create_params": {"input": "Write 42."}, "gold_replies": replies}
        rows.append(json.dumps({**row, "verifier_metadata": {"answer": "42"}}))
    (place / "data" / "example.jsonl").write_text("\n".join(rows) + "\n")
    return place


@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
async def test_what_agents_left_is_scored_by_a_mended_verifier(gymbox: Gymbox, provider: str) -> None:
    place = notes(gymbox.folder)
    ended = await gymbox.run(
        "environment=./notes", "model=scripted", f"provider={provider}", "runner.output=old", "runner.layout=nemo"
    )
    assert ended.code == 0, ended.err
    old = {line["task_id"]: line for line in gymbox.lines("old")}
    assert {id: line["reward"] for id, line in old.items()} == {"right": 1.0, "spaced": 0.0, "silent": 0.0}
    assert {id: line["kept_artifacts"]["files"] for id, line in old.items()} == {"right": 1, "spaced": 1, "silent": 0}
    assert len(list((gymbox.folder / "old" / "artifacts").glob("*/*.tar.gz"))) == 3

    server = place / "server.py"
    server.write_text(server.read_text().replace("listed.stdout ==", "listed.stdout.strip(' ') =="))
    arguments = ("-f", ".", f"provider={provider}")
    ended = await evaluated(gymbox, "reverify", "old", "-o", "new", *arguments)
    assert ended.code == 0, ended.err
    assert "3 scored anew, 1 changed, 0 copied" in ended.out
    assert "notes is another than it was: digest" in ended.out
    new = {line["task_id"]: line["reward"] for line in gymbox.lines("new")}
    assert new == {"right": 1.0, "spaced": 1.0, "silent": 0.0}
    assert len(list((gymbox.folder / "new" / "artifacts").glob("*/*.tar.gz"))) == 3

    # what is kept is what is scored, from the files in NeMo Gym's layout, too; and what is lost is no 0
    [kept] = (gymbox.folder / "old" / "artifacts").glob(f"*/{old['right']['kept_artifacts']['sha256']}*")
    kept.write_bytes(b"spoiled")
    ended = await evaluated(gymbox, "reverify", "old/nemo_gym", "-o", "third", "--json", *arguments)
    assert ended.code == 1, ended.err
    third = {line["task_id"]: line for line in gymbox.lines("third")}
    assert {id: line["reward"] for id, line in third.items()} == {"right": None, "spaced": 1.0, "silent": 0.0}
    assert (third["right"]["error"]["stage"], third["right"]["error"]["kind"]) == ("verify", "verify_failed")
    assert "cannot be read" in third["right"]["error"]["detail"]


async def test_a_run_in_nemo_gyms_layout_is_one_to_every_command(gymbox: Gymbox) -> None:
    ended = await gymbox.run(
        "environment=counter,weather", "model=scripted", "provider=process", "runner.limit=2", "runner.repeats=2",
        "runner.output=run", "runner.layout=nemo", "-v",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    theirs = gymbox.folder / "run" / "nemo_gym"
    logged = [json.loads(text) for text in (gymbox.folder / "run" / "run.log").read_text().splitlines()]
    assert sum(each["message"].startswith("rollout ") for each in logged) == 8
    assert sorted(path.name for path in theirs.iterdir()) == [
        "rollouts.jsonl",
        "rollouts_aggregate_metrics.json",
        "rollouts_failures.jsonl",
        "rollouts_materialized_inputs.jsonl",
    ]
    ended = await evaluated(gymbox, "convert", "run", "--layout", "nemo", "-o", "out/r.jsonl", "--json")
    assert json.loads(ended.out) == {
        "output": "out/r.jsonl", "rollouts": 8, "failures": 0, "inputs": 8, "unknown": 0
    }  # fmt: skip
    assert (gymbox.folder / "out" / "r.jsonl").read_bytes() == (theirs / "rollouts.jsonl").read_bytes()
    ended = await evaluated(gymbox, "compare", "run", "run/nemo_gym", "out/r.jsonl", "--json")
    assert ended.code == 0, ended.err
    assert {each["paired"] for each in json.loads(ended.out)["differences"]} == {2}
    ended = await evaluated(gymbox, "profile", "out", "--json")
    assert json.loads(ended.out)["counts"] == {"too_easy": 4}
    ended = await gymbox.run(
        "environment=counter", "model=scripted", "provider=process", "runner.output=run/nemo_gym", "runner.resume=true"
    )
    assert ended.code == 2
    assert "holds rollouts of NeMo Gym" in ended.err


async def test_what_nemo_gym_collected_is_scored_by_an_environment(gymbox: Gymbox) -> None:
    collected = Path(__file__).parents[2] / "data" / "nemo_gym" / "collected"
    place = gymbox.folder / "sums"
    (place / "data").mkdir(parents=True)
    (place / "environment.yaml").write_text("description: x\nreverify: stateless\nhidden_fields: [expected_count]\n")
    (place / "data" / "example.jsonl").write_text("{}\n")
    (place / "server.py").write_text(
        "import json\n"
        "from gymbox_sandbox import ResourcesServer\n\n\n"
        "class Sums(ResourcesServer):\n"
        "    async def verify(self, task, response):\n"
        "        calls = [item for item in response.output if item.type == 'function_call']\n"
        "        counts = [json.loads(call.arguments).get('count', 0) for call in calls]\n"
        "        return task.initial_count + sum(counts) == task.expected_count\n"
    )
    agent = "example_session_state_mgmt_simple_agent"
    arguments = ("reverify", str(collected), "-f", ".", "provider=process", "--json")
    refused = await evaluated(gymbox, *arguments, "-o", "none")
    assert refused.code == 2
    assert f"there is no environment '{agent}'" in refused.err
    ended = await evaluated(gymbox, *arguments, "-o", "new", "--rename", f"{agent}=sums")
    assert ended.code == 0, ended.err
    changes = json.loads(ended.out)
    assert (changes["verified"], changes["changed"], changes["copied"]) == (8, [], 0)
    assert sorted(line["reward"] for line in gymbox.lines("new")) == [0.0] * 2 + [1.0] * 6
    ended = await evaluated(gymbox, "compare", str(collected), "new", "--rename", f"{agent}=sums", "--json")
    [difference] = json.loads(ended.out)["differences"]
    assert (difference["paired"], difference["difference"]) == (4, 0.0)
    ended = await evaluated(gymbox, "convert", str(collected), "--layout", "gymbox", "-o", "theirs")
    assert "theirs: 8 rollouts" in ended.out
    wrong = await evaluated(gymbox, "convert", "theirs", "--layout", "memo", "-o", "x.jsonl")
    assert "did you mean 'nemo'?" in wrong.err
    wrong = await evaluated(gymbox, "convert", "theirs", "--layout", "nemo", "-o", "x")
    assert "name the file of rollouts" in wrong.err
    wrong = await evaluated(gymbox, "compare", "theirs", "theirs", "--rename", "x")
    assert "write OLD=NEW" in wrong.err


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
