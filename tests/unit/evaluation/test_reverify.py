"""Reverify: stored responses scored anew, what cannot be is refused or marked, and the old run stays as it is."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.artifacts import ArtifactStore
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Invalid, StartFailed
from gymbox.evaluation.parts import Planned, planned_of
from gymbox.evaluation.reverify import output_of, reverified
from gymbox.evaluation.rollouts import RunReader
from gymbox.models.cassettes import rollout_key
from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Verdict

from tests.unit.evaluation.conftest import line

Run = Callable[..., Path]
ANSWER = {"id": "r", "object": "response", "output": [{"type": "message", "role": "assistant", "content": "4"}]}


class Verifying:
    """A sandbox that compares the answer with the row's `expected`; it must have been reset without it."""

    def __init__(self, id: str, broken: set[str]) -> None:
        self.id = id
        self.tools: Any = None
        self.broken = broken
        self.task: dict[str, Any] = {}

    async def reset(self, task: dict[str, Any]) -> None:
        assert "expected" not in task
        self.task = task

    async def verify(self, task: dict[str, Any], response: Response) -> Verdict:
        assert self.task["id"] == task["id"]
        if task["id"] in self.broken:
            raise Invalid("verify raised", rollout_kind="verify_failed")
        right = response.output_text == task["expected"]
        return Verdict(reward=float(right), metrics={"length": len(response.output_text)})


class Sandboxes:
    def __init__(self, broken: set[str] | None = None, rooms: int | None = None) -> None:
        self.broken = broken or set()
        self.made: list[str] = []
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()
        self.starts = True

    @asynccontextmanager
    async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[Verifying]:
        assert id is not None
        self.made.append(id)
        if not self.starts:
            raise StartFailed(Ended(cause="exited", detail="no"))
        if self.gate is not None and len(self.made) > 1:
            self.reached.set()
            await self.gate.wait()
        yield Verifying(id, self.broken)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    folder = tmp_path / "environments" / "counter"
    folder.mkdir(parents=True)
    told = {"description": "x", "reverify": "stateless", "hidden_fields": ["expected"]}
    (folder / "environment.yaml").write_text(yaml.safe_dump(told))
    return Environment.load(folder)


@pytest.fixture
def stored(run: Run) -> Path:
    """a: right; b: scored 1 and wrong; c: its judge failed; d: no response."""
    failed = {"stage": "verify", "kind": "judge_failed", "detail": "x", "retryable": True, "logs": ""}
    rows = {"a": ("4", 1.0, None), "b": ("5", 1.0, None), "c": ("4", None, failed)}
    lines = [
        line(task, 0, reward, id=task, expected=expected, response=ANSWER, error=error)
        for task, (expected, reward, error) in rows.items()
    ]
    return run(*lines, line("d", id="d", expected="4"))


def lines_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {found["task_id"]: found for found in map(json.loads, (folder / "rollouts.jsonl").read_text().splitlines())}


async def test_rewards_are_made_anew_and_the_old_run_stays(
    stored: Path, environment: Environment, tmp_path: Path
) -> None:
    before = (stored / "rollouts.jsonl").read_bytes()
    heard: list[Any] = []
    changes = await reverified(
        RunReader(stored),
        {"counter": environment},
        Sandboxes(),
        tmp_path / "again",
        told=lambda rollout, outcome: heard.append((rollout.task, outcome)),
    )
    found = lines_of(tmp_path / "again")
    assert {task: each["reward"] for task, each in found.items()} == {"a": 1.0, "b": 0.0, "c": 1.0, "d": None}
    assert sorted(changes.changed) == ["counter-b-0", "counter-c-0"]
    assert (changes.planned, changes.done, changes.verified, changes.copied, changes.failed) == (4, 4, 3, 1, 0)
    assert found["b"]["reverified"]["before"]["reward"] == 1.0
    assert found["b"]["metrics"] == {"length": 1}
    assert found["c"]["error"] is None
    assert found["c"]["reverified"]["before"]["error"]["kind"] == "judge_failed"
    assert "reverified" not in found["d"]
    assert (stored / "rollouts.jsonl").read_bytes() == before
    assert sorted(heard) == [("a", 1.0), ("b", 0.0), ("c", 1.0)]
    assert RunReader(tmp_path / "again").dataset_of("counter") == "d1"  # so it can be compared with the old one


async def test_rollouts_with_long_ids_are_scored_in_sandboxes_of_their_own(
    run: Run, environment: Environment, tmp_path: Path
) -> None:
    ids = [f"0123abcd-{'n' * 60}-{number}-0" for number in range(100, 110)] + [f"{'x' * 500}{end}" for end in "ab"]
    lines = [line(id, 0, 1.0, id=id, rollout_id=id, expected="4", response=ANSWER) for id in ids]
    sandboxes = Sandboxes()
    await reverified(RunReader(run(*lines)), {"counter": environment}, sandboxes, tmp_path / "again")
    assert len(set(sandboxes.made)) == 12 and max(map(len, sandboxes.made)) <= 100
    run_of_it = json.loads((tmp_path / "again" / "manifest.json").read_text())["run"]
    found = lines_of(tmp_path / "again")[ids[0]]["reverified"]["sandbox"]
    assert found == f"{ids[0]}.again1-{run_of_it}"
    assert rollout_key(found) == rollout_key(ids[0]) == rollout_key(f"{ids[0]}.1.2")


async def test_only_those_of_a_kind_of_error_are_scored(
    stored: Path, environment: Environment, tmp_path: Path
) -> None:
    sandboxes = Sandboxes()
    changes = await reverified(
        RunReader(stored), {"counter": environment}, sandboxes, tmp_path / "again", only="judge_failed"
    )
    assert (changes.verified, changes.copied, changes.changed) == (1, 3, ["counter-c-0"])
    assert len(sandboxes.made) == 1


async def test_environments_that_were_not_chosen_are_copied_and_need_not_be_there(
    run: Run, environment: Environment, tmp_path: Path
) -> None:
    asked = {"expected": "5", "response": ANSWER}
    old = run(line("a", 0, 1.0, id="a", **asked), line("b", 0, 1.0, environment="gone", id="b", **asked))
    changes = await reverified(RunReader(old), {"counter": environment}, Sandboxes(), tmp_path / "again", chosen=True)
    assert (changes.verified, changes.copied, changes.changed) == (1, 1, ["counter-a-0"])
    found = lines_of(tmp_path / "again")
    assert (found["a"]["reward"], found["b"]["reward"], "reverified" in found["b"]) == (0.0, 1.0, False)
    inputs = json.loads((tmp_path / "again" / "manifest.json").read_text())["inputs"]
    assert inputs["reverified"]["environments"] == ["counter"] and set(inputs["environments"]) == {"counter", "gone"}
    with pytest.raises(ConfigError):  # of a resume the choice must be the same
        await reverified(RunReader(old), {"counter": environment}, Sandboxes(), tmp_path / "again", resume=True)


async def test_what_fails_has_an_error_and_no_reward(stored: Path, environment: Environment, tmp_path: Path) -> None:
    changes = await reverified(RunReader(stored), {"counter": environment}, Sandboxes({"a"}), tmp_path / "again")
    found = lines_of(tmp_path / "again")["a"]
    assert (found["reward"], found["error"]["kind"], found["error"]["stage"]) == (None, "verify_failed", "verify")
    assert changes.failed == 1
    sandboxes = Sandboxes()
    sandboxes.starts = False
    changes = await reverified(RunReader(stored), {"counter": environment}, sandboxes, tmp_path / "third")
    assert changes.failed == 3
    assert lines_of(tmp_path / "third")["a"]["error"]["stage"] == "provision"


async def test_few_can_be_tried_first(stored: Path, environment: Environment, tmp_path: Path) -> None:
    output = tmp_path / "again"
    changes = await reverified(RunReader(stored), {"counter": environment}, Sandboxes(), output, limit=2)
    assert (changes.planned, changes.done, changes.verified) == (4, 2, 2)
    assert json.loads((output / "manifest.json").read_text())["status"] == "interrupted"
    changes = await reverified(RunReader(stored), {"counter": environment}, Sandboxes(), output, resume=True)
    assert (changes.done, changes.verified) == (4, 1)
    assert json.loads((output / "manifest.json").read_text())["status"] == "finished"


async def test_what_was_stopped_goes_on_where_it_was(stored: Path, environment: Environment, tmp_path: Path) -> None:
    output, sandboxes = tmp_path / "again", Sandboxes()
    sandboxes.gate = asyncio.Event()
    work = asyncio.create_task(
        reverified(RunReader(stored), {"counter": environment}, sandboxes, output, concurrency=1)
    )
    async with asyncio.timeout(30):
        await sandboxes.reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert list(lines_of(output)) == ["a"]
    assert json.loads((output / "manifest.json").read_text())["status"] == "interrupted"
    with pytest.raises(ConfigError, match="holds a run already"):
        await reverified(RunReader(stored), {"counter": environment}, Sandboxes(), output)
    with pytest.raises(ConfigError, match=r"reverified.only: was None, is 'oom_killed'"):
        await reverified(
            RunReader(stored), {"counter": environment}, Sandboxes(), output, resume=True, only="oom_killed"
        )
    changes = await reverified(RunReader(stored), {"counter": environment}, Sandboxes(), output, resume=True)
    assert (changes.done, changes.verified, changes.copied) == (4, 2, 1)
    assert list(lines_of(output)) == ["a", "b", "c", "d"]


async def test_of_several_agents_the_one_that_was_chosen_is_all_that_the_output_has(
    run: Run, environment: Environment, tmp_path: Path
) -> None:
    told = {"reward": 1.0, "expected": "5", "response": ANSWER}
    lines = [line("a", id="a", rollout_id=name, agent_ref={"name": name}, **told) for name in ("one", "two", "agent")]
    stored, output = run(*lines, agents=["one", "two", "agent"]), tmp_path / "again"
    known = {"counter": environment}

    await reverified(RunReader(stored, "one"), known, Sandboxes(), output)
    with pytest.raises(ConfigError, match=r"reverified.agent: was 'one', is 'two'"):
        await reverified(RunReader(stored, "two"), known, Sandboxes(), output, resume=True)
    with pytest.raises(ConfigError, match=r"reverified.agent: was 'one', is None"):
        await reverified(RunReader(stored), known, Sandboxes(), output, resume=True)
    changes = await reverified(RunReader(stored, "one"), known, Sandboxes(), output, resume=True)
    await reverified(RunReader(stored, "agent"), known, Sandboxes(), tmp_path / "default")

    assert (changes.planned, changes.done) == (1, 1)
    again = RunReader(output)
    assert again.agents == ["one"] and [each.agent for each in again] == ["one"]
    assert planned_of(again) == {}, "the rows chose who does them, so nobody knows how many were its own"
    await reverified(again, known, Sandboxes(), tmp_path / "third")
    assert RunReader(tmp_path / "third").share_of == "one"
    default = RunReader(tmp_path / "default")
    assert default.agents == [] and [each.agent for each in default] == ["agent"]
    assert planned_of(default) == {}


async def test_of_an_agent_that_had_every_task_all_are_planned(
    run: Run, environment: Environment, tmp_path: Path
) -> None:
    told = {"id": "a", "reward": 1.0, "expected": "5", "response": ANSWER}
    lines = [line("a", rollout_id=name, agent_ref={"name": name}, **told) for name in ("one", "two")]
    reader = RunReader(run(*lines, agents=["one", "two"], crossed=True), "two")

    await reverified(reader, {"counter": environment}, Sandboxes(), tmp_path / "again")

    assert planned_of(RunReader(tmp_path / "again")) == planned_of(reader) == {"counter": Planned(1, 1)}


async def test_a_file_of_rollouts_is_scored_too(stored: Path, environment: Environment, tmp_path: Path) -> None:
    reader = RunReader(stored / "rollouts.jsonl")
    changes = await reverified(reader, {"counter": environment}, Sandboxes(), tmp_path / "again")
    assert (changes.verified, changes.copied, changes.environments) == (3, 1, {})
    assert lines_of(tmp_path / "again")["b"]["reverified"]["run"] == "rollouts.jsonl"


async def test_a_changed_environment_is_named(stored: Path, environment: Environment, tmp_path: Path) -> None:
    changes = await reverified(RunReader(stored), {"counter": environment}, Sandboxes(), tmp_path / "again")
    assert changes.environments == {"counter": ("e1", environment.digest)}


async def test_a_renamed_environment_has_its_new_name_in_all_of_the_new_run(
    run: Run, environment: Environment, tmp_path: Path
) -> None:
    told = {"environment": "sums", "expected": "5", "response": ANSWER}
    stored = run(line("a", 0, 1.0, id="a", **told), line("b", 0, None, id="b", environment="sums"), rows=3)
    reader = RunReader(stored, names={"sums": "counter"})
    changes = await reverified(reader, {"counter": environment}, Sandboxes(), tmp_path / "again")
    assert changes.environments == {"counter": ("e1", environment.digest)}
    again = RunReader(tmp_path / "again")
    assert planned_of(again) == planned_of(reader) == {"counter": Planned(3, 1)}
    assert {rollout.environment for rollout in again} == {"counter"}
    assert json.loads((tmp_path / "again" / "metrics.json").read_text())["environments"].keys() == {"counter"}


@pytest.fixture
def left(run: Run) -> tuple[Path, str, bytes]:
    """a: its artifacts are kept; b: none are; c: they are lost; the digest and bytes of the first."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a"))
        content = file.getvalue()
    kept = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "files": 1}
    lost = {**kept, "sha256": "0" * 64}
    told = {"reward": 0.0, "expected": "4", "response": ANSWER}
    folder = run(
        line("a", id="a", **told, kept_artifacts=kept),
        line("b", id="b", **told),
        line("c", id="c", **told, kept_artifacts=lost),
    )
    path = ArtifactStore(folder).path(kept["sha256"])
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(content))
    return folder, kept["sha256"], content


@pytest.fixture
def damaged(run: Run) -> Path:
    return run(line("a", reward=0.0, id="a", response=ANSWER, kept_artifacts={"sha256": "../x"}), name="damaged")


async def test_artifacts_are_scored_where_they_are_kept(
    left: tuple[Path, str, bytes], damaged: Path, environment: Environment, tmp_path: Path
) -> None:
    (environment.folder / "environment.yaml").write_text("description: x\nreverify: artifacts\nartifacts: [a]\n")
    stateful = Environment.load(environment.folder)
    assert output_of(tmp_path / "again", [stateful], force=False) == (tmp_path / "again", False)
    stored, digest, content = left
    seen: list[bytes] = []

    class Kept(Verifying):
        async def reset(self, task: dict[str, Any]) -> None:
            self.task = task

        async def verify(self, task: dict[str, Any], response: Response, *, artifacts: Any = None) -> Verdict:
            seen.append(artifacts.read())
            return Verdict(reward=1.0)

    class Keeping(Sandboxes):
        @asynccontextmanager
        async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[Verifying]:
            yield Kept(id or "", set())

    changes = await reverified(RunReader(stored), {"counter": stateful}, Keeping(), tmp_path / "again")
    found = lines_of(tmp_path / "again")
    assert {task: each["reward"] for task, each in found.items()} == {"a": 1.0, "b": 0.0, "c": None}
    assert found["c"]["error"]["kind"] == "verify_failed"
    assert (changes.verified, changes.copied, changes.without_artifacts, changes.failed) == (2, 1, 1, 1)
    assert seen == [content]
    assert ArtifactStore(tmp_path / "again").path(digest).is_file()
    with pytest.raises(ConfigError, match="counter-a-0: kept_artifacts is damaged"):
        await reverified(RunReader(damaged), {"counter": stateful}, Keeping(), tmp_path / "none")


async def test_a_run_that_changes_under_way_ends_it(stored: Path, environment: Environment, tmp_path: Path) -> None:
    class Damaging(Sandboxes):
        @asynccontextmanager
        async def sandbox(self, environment: Environment, *, id: str | None = None) -> AsyncIterator[Verifying]:
            raise AssertionError("it is copied")
            yield  # pragma: no cover

    reader = RunReader(stored)

    class Torn(RunReader):
        reads = 0

        def __iter__(self) -> Any:
            self.reads += 1
            if self.reads > 1:
                raise ConfigError("damaged meanwhile")
            return super().__iter__()

    with pytest.raises(ConfigError, match="damaged meanwhile"):
        await reverified(Torn(reader.path), {"counter": environment}, Damaging(), tmp_path / "again")


def test_what_looks_at_a_sandbox_is_refused_or_marked(environment: Environment, tmp_path: Path) -> None:
    (environment.folder / "environment.yaml").write_text("description: x")
    stateful = Environment.load(environment.folder)
    output = tmp_path / "again"
    assert output_of(output, [environment], force=False) == (output, False)
    assert output_of(output, [environment], force=True) == (output, False)
    with pytest.raises(ConfigError, match="counter may look at what the agent left"):
        output_of(output, [environment, stateful], force=False)
    assert output_of(output, [stateful], force=True) == (tmp_path / "unsafe_again", True)
    assert output_of(tmp_path / "unsafe_x", [stateful], force=True) == (tmp_path / "unsafe_x", True)
