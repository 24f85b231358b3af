"""`gymbox pool`, as a command, against a running controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from gymbox.cli import main

Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def gymbox(controller_url, token, capsys, monkeypatch) -> Command:
    """Runs `gymbox pool …` against the controller of this test."""
    monkeypatch.setenv("GYMBOX_TOKEN", token)

    async def run(*arguments: str) -> tuple[int, str, str]:
        def leave() -> int:
            with pytest.raises(SystemExit) as left:
                main(["pool", *arguments, "--controller", controller_url])
            return int(left.value.code or 0)

        code = await asyncio.to_thread(leave)  # it has an event loop of its own
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


async def test_a_pool_is_set_and_listed(gymbox):
    code, out, _ = await gymbox("set", "counter", "1", "--ceiling", "3", "--decay", "5")
    assert (code, out) == (0, "counter: 0 ready, 1 wanted, at most 3\n")
    code, out, _ = await gymbox("ls")
    assert code == 0 and "counter" in out and "ceiling" in out
    [told] = json.loads((await gymbox("ls", "--json"))[1])
    assert (told["environment"], told["target"], told["ceiling"], told["decay"]) == ("counter", 1, 3, 5)
    assert json.loads((await gymbox("set", "counter", "0", "--json"))[1])["wanted"] == 0


async def test_what_can_be_no_pool_is_refused_with_the_reason(gymbox):
    code, _, err = await gymbox("set", "counter", "3", "--ceiling", "2")
    assert code == 2 and "the ceiling (2) is below the target (3): raise it" in err
    code, _, err = await gymbox("set", "counter", "--decay", "0", "1")
    assert code == 2 and "decay: Input should be greater than 0" in err
    code, _, err = await gymbox("set", "countr", "1")
    assert code == 1 and "did you mean 'counter'?" in err
