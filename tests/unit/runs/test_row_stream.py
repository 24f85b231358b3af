"""Rows that come while a run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.run_control import RunControl
from gymbox.runner_settings import RunnerSettings
from gymbox.runs.row_stream import StreamedPlan, written_rows
from gymbox.runs.sync_run import in_a_thread

ROW: dict[str, Any] = {"responses_create_params": {"input": "add 1"}}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    folder = tmp_path / "counter"
    folder.mkdir()
    (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "x"}))
    return Environment.load(folder)


def plan_of(environment: Environment, rows: Any, control: RunControl | None = None, **settings: Any) -> StreamedPlan:
    return StreamedPlan(environment, RunnerSettings(**settings), rows, control or RunControl())


async def test_all_repeats_of_a_row_are_given_out_before_the_next_row_is_taken(environment: Environment) -> None:
    taken: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        for id in "ab":
            taken.append(id)
            yield {**ROW, "id": id}

    plan = plan_of(environment, rows(), repeats=2, params={"temperature": 0.5}, seed_repeats=True)
    first, second = await plan.next(), await plan.next()
    assert first is not None and second is not None
    assert (first.row.id, first.repeat, second.row.id, second.repeat) == ("a", 0, "a", 1)
    assert taken == ["a"] and not plan.ended and len(plan) == 2
    assert second.row.fields["responses_create_params"] == {"input": "add 1", "temperature": 0.5, "seed": 1}
    assert [(slot.row.index, slot.repeat) for slot in [await plan.next(), await plan.next()] if slot] == [
        (1, 0),
        (1, 1),
    ]
    assert await plan.next() is None and await plan.next() is None
    assert plan.ended and plan.sizes() == {"counter": 4}
    assert plan.inputs()["environments"]["counter"]["dataset"] is None


async def test_rows_without_an_id_are_called_by_their_number_and_limit_ends_them(environment: Environment) -> None:
    async def endless() -> AsyncIterator[dict[str, Any]]:
        while True:
            yield ROW

    plan = plan_of(environment, endless(), limit=2)
    assert [slot.row.id for slot in [await plan.next(), await plan.next()] if slot] == ["0", "1"]
    assert await plan.next() is None and plan.ended


async def test_a_stop_ends_the_wait_for_a_row(environment: Environment) -> None:
    async def never() -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield ROW

    control = RunControl()
    plan = plan_of(environment, never(), control)
    waiting = asyncio.create_task(plan.next())
    await asyncio.sleep(0.01)
    control.stop()
    async with asyncio.timeout(5):
        assert await waiting is None
    assert not plan.ended


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"responses_create_params": {"input": "x", "temperatur": 1}}, r"rows\[0\]: .*temperatur"),
        ({"id": "a"}, r"rows\[0\]: responses_create_params"),
        ({**ROW, "when": object()}, r"rows\[0\] cannot be written as JSON"),
    ],
)
async def test_a_faulty_row_is_refused_with_its_fault(environment: Environment, row: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        await plan_of(environment, [row]).next()


async def test_what_the_rows_raise_is_raised(environment: Environment) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROW
        raise LookupError("the sampler is gone")

    plan = plan_of(environment, broken())
    await plan.next()
    with pytest.raises(LookupError):
        await plan.next()


def test_rows_that_are_no_json_are_named_by_their_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\[1\] cannot be written"):
        written_rows([ROW, {"id": {1, 2}}], tmp_path / "rows.jsonl")


async def test_an_iterator_that_blocks_holds_up_nothing_but_its_reader() -> None:
    import threading

    gate = threading.Event()

    def rows() -> Iterator[int]:
        yield 1
        gate.wait(30)
        yield 2
        raise LookupError("broken")

    items = in_a_thread(rows())
    assert await anext(items) == 1
    second = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0.01)
    assert not second.done()
    gate.set()
    assert await second == 2
    with pytest.raises(LookupError):
        await anext(items)
    assert [item async for item in in_a_thread("ab")] == ["a", "b"]


async def test_null_among_the_rows_is_a_fault_and_not_their_end(environment: Environment) -> None:
    plan = plan_of(environment, iter([ROW, None, ROW]))
    assert await plan.next() is not None
    with pytest.raises(ConfigError, match=r"rows\[1\]: \(row\): is null, not an object"):
        await plan.next()
