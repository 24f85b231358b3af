"""No forgery scores in a real sandbox, and nothing that one leaves behind spoils a right answer."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from gymbox.embedded import EmbeddedController
from gymbox.environment import Environment
from gymbox.providers.process import ProcessProvider
from gymbox_sandbox.responses import Response

FOLDER = Path(__file__).resolve().parents[2] / "environments" / "unit_tests"
spec = importlib.util.spec_from_file_location("forgeries", FOLDER / "tests" / "forgeries.py")
assert spec is not None and spec.loader is not None
forgeries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(forgeries)

ENVIRONMENT = Environment.load(FOLDER)


@pytest.fixture
def sandboxes(provider: Any, controller: EmbeddedController) -> Sandboxes:
    if "WITHOUT ISOLATION" in getattr(provider, "isolation_note", ""):
        pytest.skip("forgeries write wherever they can: they need isolation")
    if getattr(provider, "isolation_note", "").endswith("as root"):
        pytest.skip("forgeries are tried as an unprivileged user")
    return Sandboxes(controller)


class Sandboxes:
    """Tries answers, each in a sandbox of its own, a few at once."""

    def __init__(self, controller: EmbeddedController) -> None:
        self._controller = controller
        self._free = asyncio.Semaphore(4)

    async def rewards(self, tries: dict[str, tuple[str, str]]) -> dict[str, float]:
        """The reward of each program that is run and answer that is given then."""
        found = await asyncio.gather(*(self.reward(*each) for each in tries.values()))
        return dict(zip(tries, found, strict=True))

    async def reward(self, program: str, answer: str) -> float:
        message = {"type": "message", "role": "assistant", "content": f"```python\n{answer}\n```"}
        async with self._free, self._controller.sandbox(ENVIRONMENT) as sandbox:
            await sandbox.reset(ENVIRONMENT.public(forgeries.ROW))
            if program:
                await sandbox.tools.call("run_python", {"code": program})
            response = Response.model_validate({"output": [message]})
            return (await sandbox.verify(ENVIRONMENT.for_verify(forgeries.ROW), response)).reward


async def test_a_right_answer_scores(sandboxes: Sandboxes) -> None:
    assert await sandboxes.rewards({"right": ("", forgeries.RIGHT)}) == {"right": 1.0}


async def test_no_function_that_cheats_scores(sandboxes: Sandboxes) -> None:
    rewards = await sandboxes.rewards({name: ("", answer) for name, answer in forgeries.ANSWERS.items()})
    assert rewards == dict.fromkeys(forgeries.ANSWERS, 0.0)


@pytest.mark.parametrize("name", forgeries.EXHAUSTS)
async def test_no_function_that_takes_all_there_is_scores_or_fails_verify(
    sandboxes: Sandboxes, provider: Any, name: str
) -> None:
    if isinstance(provider, ProcessProvider):
        pytest.skip("processes without a container have no limits but this machine's")
    assert await sandboxes.reward("", forgeries.EXHAUSTS[name]) == 0.0


@pytest.mark.parametrize("name", forgeries.READS)
async def test_no_function_can_read_what_only_verify_may_see(sandboxes: Sandboxes, name: str) -> None:
    # one at a time: processes of one environment see those of its other tasks, as the process provider says
    assert await sandboxes.reward("", forgeries.READS[name]) == 0.0


async def test_the_search_of_memory_would_find_it_in_a_process_of_its_own_user(
    sandboxes: Sandboxes, controller: EmbeddedController
) -> None:
    holder = "import os, time\nheld = bytes(reversed(b'c9a3f7-YRANAC'))\nif os.fork() == 0: time.sleep(30)\n"
    async with controller.sandbox(ENVIRONMENT) as sandbox:
        await sandbox.reset(ENVIRONMENT.public(forgeries.ROW))
        program = f"{holder}{forgeries.SEARCH_MEMORY}\nprint(found())"
        assert (await sandbox.tools.call("run_python", {"code": program})).output == "True\n"


async def test_nothing_that_was_planted_before_makes_a_wrong_answer_score(sandboxes: Sandboxes) -> None:
    planted = {name: (program, forgeries.WRONG) for name, program in forgeries.PLANTED.items()}
    assert await sandboxes.rewards(planted) == dict.fromkeys(planted, 0.0)


async def test_nothing_that_was_planted_before_spoils_a_right_answer(sandboxes: Sandboxes) -> None:
    planted = {name: (program, forgeries.RIGHT) for name, program in forgeries.PLANTED.items()}
    assert await sandboxes.rewards(planted) == dict.fromkeys(planted, 1.0)


async def test_the_agent_finds_no_dataset_and_no_generator(
    sandboxes: Sandboxes, controller: EmbeddedController
) -> None:
    async with controller.sandbox(ENVIRONMENT) as sandbox:
        await sandbox.reset(ENVIRONMENT.public(forgeries.ROW))
        found = await sandbox.exec("find / -path '*environment*' -name '*.*' -not -path '/proc/*' 2>/dev/null")
    names = {Path(path).name for path in found.stdout.splitlines()}
    assert {"server.py", "environment.yaml"} <= names
    assert not names & {"example.jsonl", "generate.py", "forgeries.py", "README.md"}
