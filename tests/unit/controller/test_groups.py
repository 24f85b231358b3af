"""Groups: sandboxes that are there all or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import AtCapacity, Conflict, Gone, Invalid, NotFound, SandboxEnded, StartFailed, Unavailable
from gymbox_sandbox.lifecycle import CreateGroup, CreateSandbox, Ended, PoolSettings

from .conftest import until


def group(id: str | None = "g", n: int = 3, environment: str = "alone", **fields: Any) -> CreateGroup:
    return CreateGroup(id=id, n=n, environment=environment, **fields)


def living(sandboxes: Sandboxes) -> set[str]:
    return {each.id for each in sandboxes.all() if each.ended is None}


async def test_a_group_is_identical_sandboxes_that_tell_of_it(controller):
    async with controller() as sandboxes:
        made = sandboxes.groups.view(await sandboxes.groups.create(group(labels={"team": "a"})))

        assert (made.id, made.n) == ("g", 3)
        assert [(one.id, one.status, one.group) for one in made.sandboxes] == [
            (f"g.{number}", "ready", "g") for number in range(3)
        ]
        assert {one.labels["team"] for one in made.sandboxes} == {"a"}
        assert sandboxes.groups.get("g").sandboxes[0].id == "g.0"


async def test_who_names_no_id_gets_a_random_one(controller):
    async with controller() as sandboxes:
        assert (await sandboxes.groups.create(group(None, 1))).id != (await sandboxes.groups.create(group(None, 1))).id


async def test_the_same_request_is_the_same_group_and_another_is_a_conflict(controller, provider):
    async with controller() as sandboxes:
        first, second = await asyncio.gather(*(sandboxes.groups.create(group()) for _ in range(2)))
        assert first is second
        assert len(provider.starts) == 3
        for other in (group(n=2), group(labels={"a": "b"})):
            with pytest.raises(Conflict):
                await sandboxes.groups.create(other)
        with pytest.raises(Conflict):
            await sandboxes.create(CreateSandbox(id="g.0", environment="alone"))


async def test_it_takes_what_a_pool_has(controller):
    async with controller(pools={"alone": PoolSettings(target=3)}) as sandboxes:
        await until(lambda: sandboxes.pools.views()[0].ready == 3)
        made = await sandboxes.groups.create(group())

        assert all(one.claimed for one in made.sandboxes)


async def test_a_group_on_shared_containers(controller):
    async with controller() as sandboxes:
        made = await sandboxes.groups.create(group(n=4, environment="shared"))

        assert len({one.container.id for one in made.sandboxes}) == 2


async def test_if_one_does_not_start_none_is_left_and_the_id_may_be_used_again(controller, provider):
    async with controller() as sandboxes:
        await sandboxes.create(CreateSandbox(id="other", environment="alone"))
        provider.start_error = StartFailed(Ended(cause="exited", detail="boom"))
        with pytest.raises(StartFailed, match="boom"):
            await sandboxes.groups.create(group())
        assert living(sandboxes) == {"other"}
        await until(lambda: len(provider.containers) == 1)

        provider.start_error = None
        assert len((await sandboxes.groups.create(group())).sandboxes) == 3


async def test_all_places_are_given_at_once_or_none(controller):
    async with controller(max_sandboxes=4) as sandboxes:
        await sandboxes.create(CreateSandbox(id="a", environment="alone"))
        await sandboxes.create(CreateSandbox(id="b", environment="alone"))
        with pytest.raises(AtCapacity, match="3 places are needed at once, and 2 of 4 are free"):
            await sandboxes.groups.create(group())
        assert living(sandboxes) == {"a", "b"}

        waiting = asyncio.create_task(sandboxes.groups.create(group(patience=10)))
        await until(lambda: sandboxes.arrivals.waiting)
        late = asyncio.create_task(sandboxes.create(CreateSandbox(id="late", environment="alone", patience=10)))
        await asyncio.sleep(0.02)
        assert not late.done()  # or small requests would starve a large one
        await sandboxes.delete("a")
        await waiting
        await sandboxes.delete("b")
        assert sandboxes.views.status(await late) == "ready"


async def test_two_groups_that_do_not_fit_together_do_not_hold_each_other_up(controller):
    async with controller(max_sandboxes=3) as sandboxes:
        first = asyncio.create_task(sandboxes.groups.create(group("g1", 2, patience=10)))
        second = asyncio.create_task(sandboxes.groups.create(group("g2", 2, patience=10)))
        await first
        assert not second.done()
        await sandboxes.groups.delete("g1")
        await second


async def test_more_than_there_can_ever_be_is_refused_at_once(controller):
    async with controller(max_sandboxes=2) as sandboxes:
        with pytest.raises(Invalid, match="max_sandboxes is 2"):
            await sandboxes.groups.create(group(patience=100))


async def test_labels_of_the_controller_cannot_be_set(controller):
    async with controller() as sandboxes:
        with pytest.raises(Invalid, match="controller's own"):
            await sandboxes.groups.create(group(labels={"gymbox.group": "other"}))
        with pytest.raises(NotFound):
            await sandboxes.groups.create(group(environment="typo"))


async def test_an_id_of_a_sandbox_that_is_not_of_the_group_is_a_conflict(controller):
    async with controller() as sandboxes:
        await sandboxes.create(CreateSandbox(id="g.1", environment="alone"))
        with pytest.raises(Conflict, match=r"g\.1"):
            await sandboxes.groups.create(group())
        assert living(sandboxes) == {"g.1"}


async def test_deleting_it_ends_all_and_its_id_is_used_up(controller, provider, folder):
    async with controller() as sandboxes:
        await sandboxes.groups.create(group())
        await sandboxes.groups.delete("g")

        assert living(sandboxes) == set()
        assert not provider.containers
        assert list((folder / "main" / "groups").iterdir()) == []
        with pytest.raises(Gone):
            await sandboxes.groups.create(group())
        for ask in (sandboxes.groups.delete, lambda id: asyncio.sleep(0, sandboxes.groups.get(id))):
            with pytest.raises(NotFound):
                await ask("g")


async def test_deleting_one_that_waits_sends_it_away(controller):
    async with controller(max_sandboxes=3) as sandboxes:
        await sandboxes.create(CreateSandbox(id="a", environment="alone"))
        waiting = asyncio.create_task(sandboxes.groups.create(group(patience=10)))
        await until(lambda: sandboxes.arrivals.waiting)
        await sandboxes.groups.delete("g")
        with pytest.raises(Gone, match="while it waited"):
            await waiting


async def test_a_group_that_has_lost_one_is_gone_for_who_asks_again(controller):
    async with controller() as sandboxes:
        await sandboxes.groups.create(group())
        await sandboxes.delete("g.1")
        with pytest.raises(Gone):
            await sandboxes.groups.create(group())
        assert [one.status for one in sandboxes.groups.view(sandboxes.groups.get("g")).sandboxes] == [
            *("ready", "ended", "ready")
        ]


async def test_who_does_not_wait_is_told_how_it_is_and_who_hangs_up_ends_nothing(controller, provider):
    provider.may_start.clear()
    async with controller() as sandboxes:
        made = sandboxes.groups.view(await sandboxes.groups.create(group(wait=False)))
        assert {one.status for one in made.sandboxes} <= {"queued", "starting"}
        hanging = asyncio.create_task(sandboxes.groups.create(group()))
        await asyncio.sleep(0.02)
        hanging.cancel()
        provider.may_start.set()
        assert len((await sandboxes.groups.create(group())).sandboxes) == 3


# --- after a crash


async def test_a_complete_group_is_adopted_whole(controller):
    async with controller() as sandboxes:
        before = await sandboxes.groups.create(group())
        ids = {one.container.id for one in before.sandboxes}
    async with controller() as sandboxes:
        again = await sandboxes.groups.create(group())
        assert {one.container.id for one in again.sandboxes} == ids
        await sandboxes.delete("g.2")
    async with controller() as sandboxes:
        with pytest.raises(Gone, match="2 are left"):
            await sandboxes.groups.create(group())
        await sandboxes.groups.delete("g")


async def test_what_is_found_of_a_group_that_was_never_complete_is_removed(controller, provider, folder):
    async with controller() as sandboxes:
        await sandboxes.groups.create(group())
    (folder / "main" / "groups" / "g").rename(folder / "main" / "groups" / "another")
    async with controller() as sandboxes:
        assert living(sandboxes) == set()
        await until(lambda: not provider.containers)
        assert list((folder / "main" / "groups").iterdir()) == []
        assert len((await sandboxes.groups.create(group())).sandboxes) == 3


async def test_a_group_that_cannot_be_noted_is_not_answered_and_leaves_nothing(controller, provider, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    async with controller() as sandboxes:
        monkeypatch.setattr("gymbox.controller.records.Records.write", full)
        with pytest.raises(Unavailable, match="no space left"):
            await sandboxes.groups.create(group())
        await until(lambda: not provider.containers)


async def test_who_stood_in_line_with_an_id_that_a_group_has_since_is_refused(controller):
    async with controller(max_sandboxes=2) as sandboxes:
        for id in ("a", "b"):
            await sandboxes.create(CreateSandbox(id=id, environment="alone"))
        single = asyncio.create_task(sandboxes.create(CreateSandbox(id="g.0", environment="alone", patience=10)))
        await until(lambda: sandboxes.arrivals.waiting == 1)
        first = asyncio.create_task(sandboxes.groups.create(group(n=1, patience=10, priority="high", run="r")))
        await until(lambda: sandboxes.arrivals.waiting == 2)
        await sandboxes.delete("a")
        [made] = (await first).sandboxes
        await sandboxes.delete("b")
        with pytest.raises(Conflict, match="another request"):
            await single
        assert sandboxes.get("g.0") is made and made.ended is None
        assert sandboxes.arrivals.held == 1


async def test_a_group_of_which_one_ends_before_the_last_is_ready_is_not_complete(controller, provider, folder):
    async with controller(pools={"alone": PoolSettings(target=1)}) as sandboxes:
        await until(lambda: sandboxes.pools.views()[0].ready == 1)
        provider.may_start.clear()
        making = asyncio.create_task(sandboxes.groups.create(group(n=2)))
        await until(lambda: "g.0" in sandboxes and sandboxes.views.status(sandboxes.get("g.0")) == "ready")
        await provider.end(sandboxes.get("g.0").container.id, "exited")
        provider.may_start.set()
        with pytest.raises(SandboxEnded, match="exited"):
            await making
        assert living(sandboxes) == set()
        assert list((folder / "main" / "groups").iterdir()) == []
