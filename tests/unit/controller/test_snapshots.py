"""What a controller makes of snapshots and pauses after a crash, and of sandboxes that end meanwhile."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import (
    AtCapacity,
    Conflict,
    Invalid,
    NotFound,
    SandboxEnded,
    SandboxPaused,
    StartFailed,
    Unavailable,
)
from gymbox_sandbox.lifecycle import EndCause, ForkSandbox, SnapshotSandbox

from .conftest import InProcessContainer, InProcessProvider, asked, until


class Saves(InProcessContainer):
    """A server that writes and reads snapshots of one line."""

    loads = True
    held = False
    """Whether it waits from its start on until it may go on."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.snapshot = ""
        self.entered, self.may_go_on = asyncio.Event(), asyncio.Event()
        if not self.held:
            self.may_go_on.set()
        self.leaves: Any = lambda path: path.write_text("saved")
        routes = self._runner.app.router
        routes.add_post("/snapshot/save", self._save)
        routes.add_post("/snapshot/load", self._load)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "snapshot": self.snapshot})

    async def _save(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.entered.set()
        await self.may_go_on.wait()
        self.leaves(self.spec.directory / body["file"])
        return web.json_response({"files": 1, "left_out": 0, "was_reset": False, "instance": None})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.entered.set()
        await self.may_go_on.wait()
        assert (self.spec.directory / body["file"]).read_text() == "saved"
        if not self.loads:
            return web.json_response({"kind": "conflict", "detail": "no room", "status": 409}, status=409)
        self.snapshot = body["id"]
        return web.json_response({})


class Pausing(InProcessProvider):
    """A provider that can pause, and be told to fail at it."""

    paused: set[str]
    pause_error: Exception | None = None

    async def pause(self, id: str) -> None:
        if self.pause_error is not None:
            raise self.pause_error
        self.__dict__.setdefault("paused", set()).add(id)

    async def unpause(self, id: str) -> None:
        self.__dict__.setdefault("paused", set()).discard(id)

    async def list(self) -> Any:
        from dataclasses import replace

        held = self.__dict__.get("paused", set())
        return [replace(found, paused=found.id in held) for found in await super().list()]


@pytest.fixture(autouse=True)
def servers_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.controller.conftest.InProcessContainer", Saves)


@pytest.fixture
def provider() -> Pausing:
    return Pausing()


def container_of(sandboxes: Any, provider: Any, id: str) -> Saves:
    found = provider.containers[sandboxes.get(id).container.id]
    assert isinstance(found, Saves)
    return found


async def test_a_container_that_is_not_yet_restored_is_not_adopted(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        for id in ("whole", "half"):
            await sandboxes.create(asked(id, snapshot="s"))
        half = container_of(sandboxes, provider, "half")
    half.snapshot = ""  # as if the controller had died before it was loaded
    async with controller() as sandboxes:
        assert {each.id for each in sandboxes.all()} == {"first", "whole"}
        assert half.spec.id in provider.stops
        assert sandboxes.snapshots.view("s").used_by == ["whole"]


async def test_what_is_paused_is_adopted_paused_without_being_asked(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        await sandboxes.copies.pause("first")
        container_of(sandboxes, provider, "first").healthz_delay = 1000
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))  # which is there
        assert sandboxes.views.status(sandboxes.get("first")) == "paused"
        with pytest.raises(SandboxPaused):
            await sandboxes.copies.fork("first", ForkSandbox())
        await sandboxes.copies.unpause("first")
        assert sandboxes.views.status(sandboxes.get("first")) == "ready"


async def test_a_pause_that_fails_leaves_the_sandbox_as_it_was(controller: Any, provider: Any, table: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        provider.pause_error = NotFound("it does not run")
        with pytest.raises(NotFound):
            await sandboxes.copies.pause("first")
        assert not table["first"].paused and sandboxes.views.status(sandboxes.get("first")) == "ready"


async def test_a_snapshot_in_use_right_now_cannot_be_deleted(
    controller: Any, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        monkeypatch.setattr(Saves, "held", True)
        begun = asyncio.create_task(sandboxes.create(asked("second", snapshot="s")))
        await until(lambda: len(provider.containers) == 2)
        second = container_of(sandboxes, provider, "second")
        await second.entered.wait()
        with pytest.raises(Conflict, match="right now"):
            sandboxes.snapshots.delete("s")
        second.may_go_on.set()
        await begun
        sandboxes.snapshots.delete("s")


async def test_a_snapshot_that_cannot_be_put_in_place_ends_the_start(
    controller: Any, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        monkeypatch.setattr(Saves, "loads", False)
        with pytest.raises(StartFailed, match="cannot begin with snapshot s: no room"):
            await sandboxes.create(asked("second", snapshot="s"))
        with pytest.raises(StartFailed):
            await sandboxes.copies.fork("first", ForkSandbox(n=2, id="f"))
        assert [view.id for view in sandboxes.snapshots.all()] == ["s"]


async def test_what_is_no_file_of_its_own_is_no_snapshot(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))

        def replaced(path: Any) -> None:
            path.unlink()
            path.symlink_to("/etc/hostname")

        container_of(sandboxes, provider, "first").leaves = replaced
        with pytest.raises(Invalid, match="no snapshot"):
            await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        assert sandboxes.snapshots.all() == []


async def test_whoever_hangs_up_leaves_a_whole_snapshot_and_two_of_one_id_are_one(
    controller: Any, provider: Any
) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        first = container_of(sandboxes, provider, "first")
        first.may_go_on.clear()
        asking = asyncio.create_task(sandboxes.copies.snapshot("first", SnapshotSandbox(id="s")))
        await first.entered.wait()
        again = asyncio.create_task(sandboxes.copies.snapshot("first", SnapshotSandbox(id="s")))
        await sandboxes.create(asked("second"))
        other = sandboxes.copies.snapshot("second", SnapshotSandbox(id="s"))
        with pytest.raises(Conflict, match="being taken"):
            await other
        asking.cancel()
        first.may_go_on.set()
        assert (await again).sandbox == "first"
        await until(sandboxes.snapshots.all)
        assert sandboxes.snapshots.view("s").size > 0


async def test_a_fork_goes_on_when_its_caller_hangs_up_for_them_to_ask_again(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        first = container_of(sandboxes, provider, "first")
        first.may_go_on.clear()
        asking = asyncio.create_task(sandboxes.copies.fork("first", ForkSandbox(n=2, id="f")))
        await first.entered.wait()
        asking.cancel()
        await asyncio.wait({asking})
        first.may_go_on.set()
        made = await sandboxes.copies.fork("first", ForkSandbox(n=2, id="f"))
        assert asking.cancelled() and [one.id for one in made] == ["f.0", "f.1"]


async def test_what_is_not_ready_is_neither_saved_nor_paused(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        provider.may_start.clear()
        await sandboxes.create(asked("first", wait=False))
        for call in (sandboxes.copies.snapshot("first", SnapshotSandbox()), sandboxes.copies.pause("first")):
            with pytest.raises(Conflict, match="not ready yet"):
                await call
        provider.may_start.set()


async def test_a_pause_waits_for_a_snapshot_under_way(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        first = container_of(sandboxes, provider, "first")
        first.may_go_on.clear()
        saving = asyncio.create_task(sandboxes.copies.snapshot("first", SnapshotSandbox(id="s")))
        await first.entered.wait()
        pausing = asyncio.create_task(sandboxes.copies.pause("first"))
        await asyncio.wait({pausing}, timeout=0.05)
        assert not pausing.done() and not sandboxes.get("first").container.paused
        first.may_go_on.set()
        assert (await saving).id == "s" and (await pausing).container.paused


async def test_a_snapshot_whose_file_is_gone_is_told(controller: Any, provider: Any, folder: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        (folder / "main" / "snapshots" / "s.tar").unlink()
        with pytest.raises(StartFailed, match="cannot be lent"):
            await sandboxes.create(asked("second", snapshot="s"))
        (folder / "main" / "snapshots" / "t.tar").mkdir()
        with pytest.raises(Unavailable, match="cannot be written"):
            await sandboxes.copies.snapshot("first", SnapshotSandbox(id="t"))


async def test_old_ones_go_and_unreadable_ones_are_left_out(controller: Any, provider: Any, folder: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        for id in ("old", "used", "fork"):
            passing = id == "fork"
            await sandboxes.copies.snapshot("first", SnapshotSandbox(id=id), passing=passing)
        await sandboxes.create(asked("second", snapshot="used"))
    store = folder / "main" / "snapshots"
    (store / "broken.json").write_text("{")
    async with controller(snapshot_age=0.05) as sandboxes:
        assert "fork" not in [view.id for view in sandboxes.snapshots.all()]  # its fork died with the controller
        await until(lambda: len(sandboxes.snapshots.all()) == 1)
        assert [view.id for view in sandboxes.snapshots.all()] == ["used"]
        assert sorted(os.listdir(store)) == ["broken.json", "used.json", "used.tar"]


@pytest.mark.parametrize(("task", "lease", "cause"), [(0.2, 60, "timeout"), (60, 0.2, "expired")])
async def test_what_comes_first_ends_a_sandbox(
    controller: Any, environments: Any, task: float, lease: float, cause: EndCause
) -> None:
    manifest = environments["alone"].manifest
    timeouts = manifest.timeouts.model_copy(update={"task": task})
    object.__setattr__(environments["alone"], "manifest", manifest.model_copy(update={"timeouts": timeouts}))
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("first", lease=lease))
        await sandbox.over.wait()
        assert sandbox.ended.cause == cause
        with pytest.raises(SandboxEnded):
            await sandboxes.copies.pause("first")


async def test_an_adopted_sandbox_has_what_is_left_of_its_time(
    controller: Any, environments: Any, provider: Any
) -> None:
    manifest = environments["alone"].manifest
    timeouts = manifest.timeouts.model_copy(update={"task": 100.0})
    object.__setattr__(environments["alone"], "manifest", manifest.model_copy(update={"timeouts": timeouts}))
    async with controller() as sandboxes:
        await sandboxes.create(asked("first", lease=6000))
        container_of(sandboxes, provider, "first").created_at -= 90
    async with controller() as sandboxes:
        view = sandboxes.views.of(sandboxes.get("first"))
        assert view.expires_at - view.created_at < 11


# --- what may happen meanwhile


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("still", [False, True])
async def test_one_that_ends_while_it_is_held_or_let_go_is_told_and_stays_ended(
    controller: Any, provider: Any, table: Any, monkeypatch: pytest.MonkeyPatch, still: bool, fails: bool
) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        if not still:
            await sandboxes.copies.pause("first")

        async def ends(container: str) -> None:
            await sandboxes.delete("first")
            if fails:
                raise NotFound("it does not run")

        monkeypatch.setattr(provider, "pause" if still else "unpause", ends)
        with pytest.raises(SandboxEnded):
            await (sandboxes.copies.pause if still else sandboxes.copies.unpause)("first")
        with pytest.raises(SandboxEnded):
            await sandboxes.reroute(sandboxes.get("first"), paused=False)
        await until(lambda: table["first"].ended)
        assert table["first"].socket is None


async def test_a_pause_of_which_the_proxy_does_not_hear_is_none(
    controller: Any, provider: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        monkeypatch.setattr("gymbox.controller.routes.PATIENCE", 0.05)
        table.errors.extend(OSError("no proxy") for _ in range(100))
        with pytest.raises(Unavailable, match="does not take routes"):
            await sandboxes.copies.pause("first")
        table.errors.clear()
        await until(lambda: sandboxes.views.status(sandboxes.get("first")) == "ready")
        assert not table["first"].paused and not provider.__dict__.get("paused")


async def test_a_fork_has_its_id_for_one_sandbox_and_one_request(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        for id in ("first", "second"):
            await sandboxes.create(asked(id))
        first = container_of(sandboxes, provider, "first")
        first.may_go_on.clear()
        making = asyncio.create_task(sandboxes.copies.fork("first", ForkSandbox(n=2, id="f")))
        await first.entered.wait()
        others = [("second", ForkSandbox(n=2, id="f")), ("first", ForkSandbox(n=2, id="f", files_only=True))]
        for parent, request in others:
            with pytest.raises(Conflict, match="another request"):
                await sandboxes.copies.fork(parent, request)
        patient = asyncio.create_task(sandboxes.copies.fork("first", ForkSandbox(n=2, id="f", patience=5)))
        first.may_go_on.set()
        made = await making
        assert await patient == made == await sandboxes.copies.fork("first", ForkSandbox(n=2, id="f"))
        with pytest.raises(Conflict, match="another request"):
            await sandboxes.copies.fork("second", ForkSandbox(n=2, id="f"))
        assert all(one.ended is None for one in made)


async def test_a_fork_that_fails_leaves_what_others_made_of_its_ids(controller: Any, provider: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        first = container_of(sandboxes, provider, "first")
        first.may_go_on.clear()
        making = asyncio.create_task(sandboxes.copies.fork("first", ForkSandbox(n=3, id="f")))
        await first.entered.wait()
        another = await sandboxes.create(asked("f.1"))
        first.may_go_on.set()
        with pytest.raises(Conflict, match=r"f\.1"):
            await making
        assert {each.id for each in sandboxes.all() if each.ended is None} == {"first", "f.1"}
        assert sandboxes.get("f.1") is another


async def test_a_fork_cannot_have_labels_of_the_controller(controller: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        with pytest.raises(Invalid, match="controller's own"):
            await sandboxes.copies.fork("first", ForkSandbox(labels={"gymbox.fork": "other"}))


async def test_what_a_server_writes_later_is_in_no_snapshot(controller: Any, provider: Any, folder: Any) -> None:
    async with controller() as sandboxes:
        await sandboxes.create(asked("first"))
        held = []

        def written(path: Any) -> None:
            held.append(path.open("r+b", buffering=0))
            held[0].write(b"saved")

        container_of(sandboxes, provider, "first").leaves = written
        await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))
        with held[0]:
            held[0].write(b" and more")
        tar = folder / "main" / "snapshots" / "s.tar"
        assert (tar.read_text(), tar.stat().st_mode & 0o777) == ("saved", 0o444)


async def test_more_than_a_server_was_told_to_write_is_no_snapshot(controller: Any, provider: Any) -> None:
    async with controller(snapshot_mb=1) as sandboxes:
        await sandboxes.create(asked("first"))
        container_of(sandboxes, provider, "first").leaves = lambda path: os.truncate(path, 1 << 21)
        with pytest.raises(Invalid, match="no snapshot"):
            await sandboxes.copies.snapshot("first", SnapshotSandbox(id="s"))


async def test_snapshots_that_do_not_fit_together_are_taken_one_after_the_other(
    controller: Any, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller(snapshot_mb=1) as sandboxes:
        for id in ("first", "second", "third"):
            await sandboxes.create(asked(id))
        first, second, third = (container_of(sandboxes, provider, id) for id in ("first", "second", "third"))
        first.may_go_on.clear()
        saving = asyncio.create_task(sandboxes.copies.snapshot("first", SnapshotSandbox(id="a")))
        await first.entered.wait()
        waiting = asyncio.create_task(sandboxes.copies.snapshot("second", SnapshotSandbox(id="b")))
        await asyncio.wait({waiting}, timeout=0.05)
        monkeypatch.setattr("gymbox.controller.snapshots.TRANSFER", 0.05)
        with pytest.raises(AtCapacity, match="no room"):
            await sandboxes.copies.snapshot("third", SnapshotSandbox(id="c"))
        monkeypatch.undo()
        assert not second.entered.is_set() and not third.entered.is_set()
        first.may_go_on.set()
        assert [(await each).id for each in (saving, waiting)] == ["a", "b"]


async def test_a_snapshots_id_is_the_same_request_only_for_the_sandbox_that_it_was_taken_of(
    controller: Any, provider: Any
) -> None:
    same = SnapshotSandbox(id="same")
    async with controller() as sandboxes:
        await sandboxes.create(asked("re"))
        taken = await sandboxes.copies.snapshot("re", same)
    async with controller() as sandboxes:
        assert await sandboxes.copies.snapshot("re", same) == taken  # which lives on
        await sandboxes.delete("re")
    async with controller() as sandboxes:
        await sandboxes.create(asked("re"))
        with pytest.raises(Conflict, match="there is a snapshot same already"):
            await sandboxes.copies.snapshot("re", same)
        assert sandboxes.snapshots.view("same") == taken


async def test_a_forks_id_is_the_same_request_only_for_the_sandbox_where_it_began(
    controller: Any, provider: Any
) -> None:
    same = ForkSandbox(id="same")
    async with controller() as sandboxes:
        await sandboxes.create(asked("re"))
        [fork] = await sandboxes.copies.fork("re", same)
        assert await sandboxes.copies.fork("re", same) == [fork]
        await sandboxes.delete("re")
    async with controller() as sandboxes:
        await sandboxes.create(asked("re"))
        with pytest.raises(Conflict, match="were asked for with another request"):
            await sandboxes.copies.fork("re", same)
