"""The agents of docs/foreign-agents.md, as they stand there: each does tasks with its framework, and its calls are the
rollout's."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError
from gymbox.models.cassettes import recorded_calls
from gymbox.models.local import bundled_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "foreign-agents.md").read_text()
CODE = dict(re.findall(r"^```python file=(\S+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = dict(re.findall(r"^gymbox run (.*agent\._target_=(\w+)\..*)$", PAGE, re.MULTILINE))
COMMAND = {module: command for command, module in COMMANDS.items()}
NEEDS = {
    "openai_sdk": ["openai"],
    "anthropic_sdk": ["anthropic"],
    "agents_sdk": ["agents"],
    "langgraph_agent": ["langgraph", "langchain_openai"],
    "litellm_agent": ["litellm"],
}
DIALECT = {"openai_sdk": "responses", "anthropic_sdk": "messages", "agents_sdk": "responses"}


@pytest.fixture(params=NEEDS)
def framework(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A framework that is installed; its agent is in `tmp_path`."""
    name: str = request.param
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    (tmp_path / f"{name}.py").write_text(CODE[name])
    return name


def run(framework: str, folder: Path, *more: str) -> list[dict[str, Any]]:
    """The lines of a run by the page's own command, with other words appended."""
    command = [str(Path(sys.executable).with_name("gymbox")), "run", *COMMAND[framework].split()]
    kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    done = subprocess.run(
        [*command, "provider=process", "runner.output=run", *more],
        cwd=folder,
        env={**kept, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return [json.loads(line) for line in (folder / "run" / "rollouts.jsonl").read_text().splitlines()]


def check_calls(framework: str, folder: Path, lines: list[dict[str, Any]]) -> None:
    """The calls of a run are its rollouts', in the dialect of the framework, and none is missing."""
    calls = list(recorded_calls(folder / "run"))
    assert {call.dialect for call in calls} == {DIALECT.get(framework, "chat")}
    assert {call.stream for call in calls} == {framework == "anthropic_sdk"}
    for line in lines:
        mine = [call for call in calls if call.rollout == line["rollout_id"]]
        assert len(mine) == line["calls"]["count"] > 1 and line["calls"]["missing"] == 0
    assert len(calls) == sum(line["calls"]["count"] for line in lines)


def test_the_page_has_an_agent_and_a_command_for_each_framework() -> None:
    assert CODE.keys() == COMMAND.keys() == NEEDS.keys()


def test_an_agent_of_a_framework_earns_what_the_gold_replies_do(framework: str, tmp_path: Path) -> None:
    lines = run(framework, tmp_path, "model=scripted", "environment=counter", "runner.limit=3")
    assert [line["reward"] for line in lines] == [1.0] * 3
    rows = (ROOT / "environments" / "counter" / "data" / "example.jsonl").read_text().splitlines()
    turns = {row["id"]: len(row["gold_replies"]) for row in map(json.loads, rows)}
    for line in lines:
        items = line["response"]["output"]
        made = [item["call_id"] for item in items if item["type"] == "function_call"]
        assert made and sorted(made) == sorted(
            item["call_id"] for item in items if item["type"] == "function_call_output"
        )
        assert items[-1]["type"] == "message" and items[-1]["role"] == "assistant"
        assert line["calls"]["count"] == turns[line["task_id"]]
    check_calls(framework, tmp_path, lines)


@pytest.mark.local_model
def test_an_agent_of_a_framework_does_a_task_with_a_real_model(framework: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    try:
        bundled_model()
    except ConfigError as error:
        pytest.skip(str(error))
    [line] = run(framework, tmp_path, "runner.limit=1", "model.max_output_tokens=64", "model.temperature=0")
    assert line["error"] is None and line["reward"] in (0.0, 1.0)
    assert "get_weather" in [item.get("name") for item in line["response"]["output"]]
    check_calls(framework, tmp_path, [line])
    spent = [call.usage for call in recorded_calls(tmp_path / "run")]
    assert all(usage is not None and usage.output_tokens for usage in spent)
    for name in ("input_tokens", "output_tokens"):
        assert line["usage"][name] == sum(getattr(usage, name) for usage in spent)
