"""`gymbox env`: list, show, resolve, init, test, start and status, with real sandboxes as processes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main
from gymbox.cli.env import example
from gymbox.cli.places import admin_token, environment_folders, program
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog
from gymbox.http import HttpClient
from gymbox.providers.process import ProcessProvider

GYMBOX = [sys.executable, "-c", "from gymbox.cli import main; main()"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a home of its own: no token and no state of this user's is touched."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GYMBOX_TOKEN", raising=False)
    monkeypatch.setattr("gymbox.cli.env.state_folder", lambda: tmp_path / "state")
    monkeypatch.setattr("gymbox.cli.controllers.state_folder", lambda: tmp_path / "state")
    monkeypatch.setattr("gymbox.controller.settings.DEFAULT_PORT", 1)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def gymbox(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["env", *arguments])
    return int(str(left.value.code or 0))


def test_list_shows_the_environments_that_come_with_gymbox(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("list") == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("counter", "unit_tests", "weather"))

    assert gymbox("list", "--json") == 0
    found = {environment["name"]: environment for environment in json.loads(capsys.readouterr().out)}
    assert found["counter"]["tasks"] == 24 and found["counter"]["verified"] is True


def test_a_folder_without_environments_says_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("list", "--folder", "nowhere") == 0
    assert "gymbox env init NAME" in capsys.readouterr().out


@pytest.mark.parametrize("manifest", [b"description: [", b"\xff"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_one_faulty_manifest_hides_no_other_environment(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], manifest: bytes
) -> None:
    (home / "environments" / "bad").mkdir(parents=True)
    (home / "environments" / "bad" / "environment.yaml").write_bytes(manifest)

    assert gymbox("list", *arguments) == 1
    told = capsys.readouterr()
    assert "counter" in told.out and "bad" not in told.out
    assert "bad/environment.yaml is not YAML" in told.err


def test_show_tells_what_the_first_task_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("show", "counter") == 0
    assert "first task:  Add 49" in capsys.readouterr().out
    assert gymbox("show", "weather", "--json") == 0
    assert json.loads(capsys.readouterr().out)["first_task"].startswith("What is the temperature")


def test_show_does_without_a_dataset(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "environments" / "bare"
    folder.mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: Nothing yet\n")
    assert gymbox("show", "bare") == 0
    told = capsys.readouterr().out
    assert "tasks:       0" in told and "verified:    no" in told


def test_resolve_fills_in_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("resolve", "counter", "--json") == 0
    resolved = json.loads(capsys.readouterr().out)
    assert (resolved["sessions"], resolved["hidden_fields"], resolved["limits"]["pids"]) == (
        1,
        ["expected_count"],
        256,
    )
    assert len(resolved["digest"]) == 64
    assert gymbox("resolve", str(environment_folders()[-1] / "counter")) == 0
    assert "sessions: 1\n" in capsys.readouterr().out


def test_a_mistyped_name_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("show", "conter") == 2
    assert "did you mean 'counter'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["shop", "my-shop.2", "9lives"])
def test_a_new_environment_passes_its_checks_and_its_own_tests_at_once(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gymbox("init", name) == 0
    assert f"next: {program()} env test {name}" in capsys.readouterr().out
    assert "verified: false" in (home / "environments" / name / "environment.yaml").read_text()
    assert "new_environment" not in "".join(p.read_text() for p in home.rglob("*") if p.is_file())

    assert gymbox("test", name, "provider=process") == 0
    assert "FAILED" not in capsys.readouterr().out
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"environments/{name}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_init_overwrites_nothing_and_takes_no_odd_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("init", "shop", "--folder", "mine") == 0
    assert f"next: {program()} env test mine/shop" in capsys.readouterr().out
    assert gymbox("init", "shop", "--folder", "mine") == 2
    assert "exists already" in capsys.readouterr().err
    assert gymbox("init", "../shop") == 2
    assert "is no name" in capsys.readouterr().err


def test_test_shows_what_is_wrong_with_an_environment(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymbox("init", "bad")
    server = home / "environments" / "bad" / "server.py"
    server.write_text(server.read_text().replace("return 1.0 if words[-1:] == [expected] else 0.0", "return 0.5"))
    capsys.readouterr()

    assert gymbox("test", "./environments/bad", "provider=process", "runner.limit=1", "--json") == 1

    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["manifest and rows are valid"]["tried"] == 3
    assert findings["gold replies score 1.0"]["faults"] == ["bad-0: got 0.5"]
    assert findings["doing nothing does not score"]["faults"] == ["bad-0: got 0.5"]
    assert findings["the same run gets the same reward"]["passed"]


def test_a_server_that_does_not_start_is_told_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymbox("init", "bad")
    (home / "environments" / "bad" / "server.py").write_text("import nothing_such")
    capsys.readouterr()

    assert gymbox("test", "bad", "provider=process", "--json") == 1

    told = capsys.readouterr()
    valid, starts = json.loads(told.out)
    assert valid["passed"] and starts["check"] == "a sandbox starts"
    assert "No module named 'nothing_such'" in starts["faults"][0]
    assert told.err.count("nothing_such") == 1


def test_what_a_server_printed_before_it_ended_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymbox("init", "bad")
    server = home / "environments" / "bad" / "server.py"
    server.write_text("import os\nprint('boo', flush=True)\nos._exit(3)\n")
    capsys.readouterr()

    assert gymbox("test", "bad", "provider=process") == 1

    told = " ".join(capsys.readouterr().out.split())
    assert "(exit code 3), before it was ready; its log ends with: boo" in told


def test_two_runs_that_fail_alike_have_no_reward_to_be_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymbox("init", "bad")
    server = home / "environments" / "bad" / "server.py"
    server.write_text(server.read_text().replace("return 1.0 if words", "return 1.0 / 0 if words"))
    capsys.readouterr()

    assert gymbox("test", "bad", "provider=process", "runner.limit=1", "--json") == 1

    same = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}[
        "the same run gets the same reward"
    ]
    assert not same["passed"] and "verify_failed" in same["faults"][0]


def test_what_is_kept_must_be_enough_to_score(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymbox("init", "kept")
    folder = home / "environments" / "kept"
    server, manifest = folder / "server.py", (folder / "environment.yaml").read_text()
    text = server.read_text()
    text = text.replace(
        "        return self.cards[name]", '        await self.exec("touch seen")\n        return self.cards[name]'
    )
    text = text.replace(
        "        words =",
        '        if (await self.exec("cat seen")).exit_code:\n            return 0.0\n        words =',
    )
    server.write_text(text)
    found = {}
    for kept in ("reverify: stateless", "reverify: artifacts\nartifacts: [seen]"):
        (folder / "environment.yaml").write_text(f"{manifest}\n{kept}\n")
        capsys.readouterr()
        gymbox("test", "kept", "provider=process", "runner.limit=1", "--json")
        findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
        found[kept.split("\n")[0]] = findings["what is kept gets the same reward"]["faults"]

    assert found == {"reverify: stateless": ["kept-0: got 1, then got 0"], "reverify: artifacts": []}


def test_a_wrong_row_or_setting_starts_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymbox("init", "bad")
    (home / "environments" / "bad" / "data" / "example.jsonl").write_text("{}\n")
    assert gymbox("test", "bad", "provider=process") == 2
    assert "responses_create_params" in capsys.readouterr().err
    assert gymbox("test", "counter", "provider=proces") == 2
    assert "did you mean 'process'?" in capsys.readouterr().err


def test_a_provider_that_does_not_answer_is_told_with_two_ways_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("test", "counter", "provider=docker", "provider.host=unix:///nowhere.sock") == 2
    assert "provider=process" in capsys.readouterr().err


async def test_start_gives_a_sandbox_to_play_with_until_it_is_interrupted(home: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *GYMBOX, "env", "start", "counter", "provider=process", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    told = []
    async with asyncio.timeout(60):
        while not told or "Ctrl-C" not in told[-1]:
            told.append((await process.stdout.readline()).decode())
    exports = next(line for line in told if line.startswith("export "))
    tokens = dict(part.split("=", 1) for part in shlex.split(exports)[1:])
    curls = [line for line in told if line.startswith("curl ")]

    answers = [await typed(line, tokens) for line in curls]

    assert [tool["name"] for tool in answers[0]["tools"]] == ["increment_counter", "get_counter_value"]
    assert json.loads(answers[1]["output"]) == {"success": True}
    assert json.loads(answers[2]["output"]) == {"count": -2}
    assert answers[3]["reward"] == 0.0
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        rest = (await process.stdout.read()).decode()
        assert await process.wait() == 0
    assert "removing counter-" in rest


async def typed(line: str, tokens: dict[str, str]) -> Any:
    """What a shell prints for a line that `start` showed."""
    process = await asyncio.create_subprocess_shell(line, env={**os.environ, **tokens}, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return json.loads(output)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[EmbeddedController]:
    """A controller that `status` finds."""
    async with HttpClient() as http:
        catalog = Catalog(environment_folders())
        async with EmbeddedController(ProcessProvider(), catalog, tmp_path / "state", admin_token(), http) as embedded:
            yield embedded


async def test_status_counts_the_sandboxes_of_each_environment(
    running: EmbeddedController, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = Catalog(environment_folders())["counter"]
    async with running.sandbox(counter), running.sandbox(counter):
        assert await asyncio.to_thread(gymbox, "status", "--json") == 0
        found = {row["environment"]: row for row in json.loads(capsys.readouterr().out)}
        assert found["counter"] == {"environment": "counter", "queued": 0, "starting": 0, "ready": 2, "ended": 0}
        assert await asyncio.to_thread(gymbox, "status", "--controller", running.url) == 0
        assert "counter" in capsys.readouterr().out


async def test_checks_run_on_a_controller_that_runs_already(
    running: EmbeddedController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(gymbox, "test", "counter", f"controller={running.url}", "runner.limit=2") == 0
    assert "gold replies score 1.0" in capsys.readouterr().out


def test_status_without_a_controller_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert gymbox("status") == 2
    assert "gymbox serve controller" in capsys.readouterr().err


def test_an_example_has_arguments_of_the_right_types() -> None:
    schema = {
        "properties": {
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
            "names": {"type": "array"},
            "city": {"type": "string"},
            "any": {"anyOf": []},
        }
    }
    assert example(schema) == {"count": 1, "share": 1.0, "sure": True, "names": [], "city": "text", "any": "text"}
