"""Sandboxes: from the request for one to the memory of why it ended."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import (
    AtCapacity,
    ConfigError,
    Conflict,
    Gone,
    ImageBuildFailed,
    Invalid,
    NotFound,
    SandboxEnded,
    StartFailed,
    Unavailable,
)
from gymbox_sandbox.lifecycle import CreateSandbox, Ended

from .conftest import environment, until


def asked(id: str | None = None, environment: str = "alone", **fields: Any) -> CreateSandbox:
    return CreateSandbox(id=id, environment=environment, **fields)


def status(sandboxes: Sandboxes, id: str) -> str:
    return sandboxes.views.status(sandboxes.get(id))


# --- creating


async def test_a_created_sandbox_is_ready_routed_and_has_tokens(controller, table):
    async with controller() as sandboxes:
        view = sandboxes.views.of(await sandboxes.create(asked("s1", labels={"team": "a"})))

        assert (view.status, view.environment, view.labels) == ("ready", "alone", {"team": "a"})
        assert view.url == "http://proxy/sandboxes/s1"
        assert view.tokens.tools != view.tokens.control
        assert view.image == "image:1"
        assert table["s1"].socket.endswith("server.sock")
        assert view.phases.queued <= view.phases.created <= view.phases.started <= view.phases.ready


async def test_who_names_no_id_gets_a_random_one(controller):
    async with controller() as sandboxes:
        first, second = await sandboxes.create(asked()), await sandboxes.create(asked())

        assert first.id != second.id


async def test_a_hundred_identical_requests_at_once_start_one_container(controller, provider):
    async with controller() as sandboxes:
        made = await asyncio.gather(*(sandboxes.create(asked("s1")) for _ in range(100)))

        assert len({id(sandbox) for sandbox in made}) == 1
        assert len(provider.starts) == 1


async def test_the_same_id_with_another_request_is_a_conflict(controller):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))

        with pytest.raises(Conflict):
            await sandboxes.create(asked("s1", labels={"other": "body"}))


async def test_whether_to_wait_makes_no_other_request(controller):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", wait=False))

        assert await sandboxes.create(asked("s1", wait=True)) is first


async def test_who_does_not_wait_sees_it_queued_then_starting_then_ready(controller, provider):
    async with controller(max_starting=1) as sandboxes:
        provider.may_start.clear()
        await sandboxes.create(asked("s1", wait=False))
        await sandboxes.create(asked("s2", wait=False))
        await until(lambda: provider.starts)

        assert (status(sandboxes, "s1"), status(sandboxes, "s2")) == ("starting", "queued")
        assert sandboxes.waiting == 1
        provider.may_start.set()
        await until(lambda: status(sandboxes, "s2") == "ready")


async def test_no_more_start_at_once_than_allowed_and_in_the_order_of_their_requests(controller, provider):
    async with controller(max_starting=2) as sandboxes:
        provider.may_start.clear()
        creating = [asyncio.create_task(sandboxes.create(asked(f"s{n}"))) for n in range(6)]
        await until(lambda: len(provider.starts) == 2)
        provider.may_start.set()
        await asyncio.gather(*creating)

        assert provider.most_starting == 2
        assert [id.rsplit("-", 1)[1] for id in provider.starts] == [f"s{n}" for n in range(6)]


async def test_beyond_the_limit_it_says_when_to_come_back(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))

        with pytest.raises(AtCapacity) as refused:
            await sandboxes.create(asked("s2"))
        assert refused.value.retry_after
        await sandboxes.delete("s1")
        await sandboxes.create(asked("s2"))


async def test_an_unknown_environment_is_not_found(controller, environments):
    async with controller() as sandboxes:

        def none(name: str) -> Any:
            raise ConfigError(f"there is no environment {name!r}")

        sandboxes.environments = none
        with pytest.raises(NotFound, match="typo"):
            await sandboxes.create(asked("s1", "typo"))


async def test_labels_of_the_controller_cannot_be_set(controller):
    async with controller() as sandboxes:
        with pytest.raises(Invalid):
            await sandboxes.create(asked("s1", labels={"gymbox.request": "x"}))


# --- starts that fail


async def test_a_failed_start_tells_everyone_who_waits_and_is_shown_with_its_logs(controller, provider):
    ended = Ended(cause="exited", detail="it exited with 3", exit_code=3, logs="boom\n")
    provider.start_error = StartFailed(ended)
    async with controller() as sandboxes:
        outcomes = await asyncio.gather(*(sandboxes.create(asked("s1")) for _ in range(3)), return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [StartFailed] * 3
        assert sandboxes.views.of(sandboxes.get("s1")).ended == ended
        assert await sandboxes.views.logs(sandboxes.get("s1")) == "boom\n"


async def test_an_id_whose_start_failed_may_be_tried_again(controller, provider):
    async with controller() as sandboxes:
        provider.start_error = Unavailable("the engine is down")
        with pytest.raises(Unavailable, match="engine"):
            await sandboxes.create(asked("s1"))
        provider.start_error = None

        assert sandboxes.views.status(await sandboxes.create(asked("s1"))) == "ready"


async def test_an_image_that_does_not_build_is_told_with_its_log(controller, provider):
    provider.start_error = ImageBuildFailed("step 3 failed", log="E: no package")
    async with controller() as sandboxes:
        with pytest.raises(ImageBuildFailed):
            await sandboxes.create(asked("s1"))

        assert sandboxes.get("s1").ended.logs == "E: no package"


async def test_what_a_failed_start_left_behind_is_removed_until_it_is_gone(controller, provider, folder):
    async with controller() as sandboxes:
        provider.start_error = Unavailable("the engine is down")
        provider.stop_errors = 1
        with pytest.raises(Unavailable):
            await sandboxes.create(asked("s1"))

        deletes = folder / "main" / "deletes"
        assert [path.name for path in deletes.iterdir()] == provider.starts
        await until(lambda: not list(deletes.iterdir()))
        assert provider.stops == provider.starts * 2


async def test_an_id_is_not_started_anew_before_what_its_last_start_left_is_gone(controller, provider):
    async with controller() as sandboxes:
        provider.start_error = Unavailable("the engine is down")
        provider.stop_errors = 2
        with pytest.raises(Unavailable):
            await sandboxes.create(asked("s1"))
        provider.start_error = None
        await sandboxes.create(asked("s1"))

        assert provider.stop_errors == 0
        assert len(provider.containers) == 1


async def test_an_id_whose_leftovers_do_not_go_is_not_started(controller, provider, environments, folder):
    environments["alone"] = environment(folder / "environments", "alone", timeouts={"start": 0.05})
    async with controller() as sandboxes:
        provider.start_error = Unavailable("the engine is down")
        provider.stop_errors = 1000
        with pytest.raises(Unavailable, match="engine"):
            await sandboxes.create(asked("s1"))
        with pytest.raises(Unavailable, match="left behind"):
            await sandboxes.create(asked("s1"))

        assert len(provider.starts) == 1
    provider.stop_errors = 0


async def test_a_bug_in_a_provider_is_a_failed_start(controller, provider):
    provider.start_error = KeyError("oops")
    async with controller() as sandboxes:
        with pytest.raises(StartFailed, match="KeyError"):
            await sandboxes.create(asked("s1"))


# --- ending


async def test_a_deleted_sandbox_is_gone_and_so_is_its_container(controller, provider, table):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        await sandboxes.delete("s1")
        await sandboxes.delete("s1")

        assert provider.containers == {}
        await until(lambda: table["s1"].ended)
        assert table["s1"].ended.cause == "deleted"
        assert table["s1"].socket is None
        with pytest.raises(Gone):
            await sandboxes.create(asked("s1"))
        with pytest.raises(NotFound):
            await sandboxes.delete("s2")


async def test_one_that_waits_in_line_can_be_deleted(controller, provider):
    async with controller(max_starting=1) as sandboxes:
        provider.may_start.clear()
        creating = [asyncio.create_task(sandboxes.create(asked(id))) for id in ("s1", "s2")]
        await until(lambda: provider.starts)
        await sandboxes.delete("s2")
        await sandboxes.delete("s1")
        outcomes = await asyncio.gather(*creating, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [SandboxEnded, SandboxEnded]
        assert len(provider.starts) == 1
        assert sandboxes.containers == 0


async def test_what_nobody_renews_expires(controller, provider):
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s1", lease=0.05))
        async with asyncio.timeout(5):
            await sandbox.over.wait()

        assert sandbox.ended.cause == "expired"
        await until(lambda: not provider.containers)


async def test_what_a_sandbox_waits_in_line_does_not_count(controller, provider):
    async with controller() as sandboxes:
        provider.may_start.clear()
        creating = asyncio.create_task(sandboxes.create(asked("s1", lease=0.05)))
        await until(lambda: provider.starts)
        sandboxes.renew("s1")
        asked_at = sandboxes.get("s1").created
        await until(lambda: time.monotonic() > asked_at + 0.1)
        view = sandboxes.views.of(sandboxes.get("s1"))
        assert (view.status, view.expires_at > time.time()) == ("starting", True)
        provider.may_start.set()

        sandbox = await creating
        async with asyncio.timeout(5):
            await sandbox.over.wait()
        assert sandbox.ended.cause == "expired"


async def test_a_renewed_sandbox_lives_longer(controller):
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s1", lease=1))
        before = sandboxes.views.of(sandbox).expires_at
        sandboxes.renew("s1", 500)

        assert sandboxes.views.of(sandbox).expires_at > before + 400
        await sandboxes.delete("s1")
        with pytest.raises(SandboxEnded):
            sandboxes.renew("s1")


async def test_a_container_that_dies_ends_its_sandboxes_with_the_cause(controller, provider, table):
    async with controller() as sandboxes:
        sandboxes_on_it = [await sandboxes.create(asked(id, "shared")) for id in ("s1", "s2")]
        await provider.end(sandboxes_on_it[0].container.id, "oom_killed", logs="Killed\n")

        assert [sandbox.ended.cause for sandbox in sandboxes_on_it] == ["oom_killed"] * 2
        assert await sandboxes.views.logs(sandboxes.get("s2")) == "Killed\n"
        await until(lambda: table["s1"].ended)
        assert (table["s1"].ended.cause, table["s1"].ended.logs) == ("oom_killed", "")
        await until(lambda: not provider.containers)


async def test_only_the_latest_ended_ones_are_remembered(controller, table):
    async with controller(tombstones=2) as sandboxes:
        for n in range(4):
            await sandboxes.create(asked(f"s{n}"))
            await sandboxes.delete(f"s{n}")

        with pytest.raises(NotFound):
            sandboxes.get("s1")
        assert status(sandboxes, "s3") == "ended"
        await until(lambda: table["s1"] is None and table["s3"] is not None)


async def test_a_container_that_cannot_be_removed_is_tried_again(controller, provider):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        provider.stop_errors = 1
        await sandboxes.delete("s1")

        assert provider.containers
        await until(lambda: not provider.containers)


async def test_on_a_full_disk_what_can_be_removed_is_removed(controller, provider, folder):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        (folder / "main" / "deletes").rmdir()
        (folder / "main" / "deletes").touch()  # now no intent can be written, nor taken back
        await sandboxes.delete("s1")

        assert provider.containers == {}


async def test_logs_of_a_living_sandbox_come_from_its_container(controller, provider):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        assert (await sandboxes.views.logs(sandboxes.get("s1"))).startswith("log of")
        provider.may_start.clear()
        await sandboxes.create(asked("s2", wait=False))
        assert await sandboxes.views.logs(sandboxes.get("s2")) == ""


# --- sharing a container


async def test_sandboxes_share_a_container_up_to_its_sessions(controller, provider, table):
    async with controller() as sandboxes:
        made = await asyncio.gather(*(sandboxes.create(asked(f"s{n}", "shared")) for n in range(5)))

        assert len(provider.containers) == 3
        assert len({sandbox.container.id for sandbox in made}) == 3
        assert table["s1"].session == "s1"
        assert table["s1"].tools_token != table["s2"].tools_token


async def test_a_sandbox_that_leaves_a_shared_container_ends_its_session_there(controller, provider):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        await sandboxes.create(asked("s2", "shared"))
        await sandboxes.delete("s1")

        container = provider.containers[first.container.id]
        assert container.ended_sessions == ["s1"]
        assert (await sandboxes.create(asked("s3", "shared"))).container is first.container


async def test_a_shared_container_is_used_again_before_it_is_stopped(controller, provider):
    async with controller(idle=30) as sandboxes:
        await sandboxes.create(asked("s1", "shared"))
        await sandboxes.delete("s1")
        await sandboxes.create(asked("s2", "shared"))

        assert len(provider.starts) == 1


async def test_a_shared_container_without_sandboxes_is_stopped(controller, provider):
    async with controller(idle=0.01) as sandboxes:
        await sandboxes.create(asked("s1", "shared"))
        await sandboxes.delete("s1")

        await until(lambda: not provider.containers)


async def test_where_a_session_does_not_end_no_other_task_comes_in(controller, provider):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        provider.containers[first.container.id].refuse_to_end_sessions = True
        await sandboxes.delete("s1")

        assert (await sandboxes.create(asked("s2", "shared"))).container is not first.container
        await until(lambda: first.container.id not in provider.containers)


async def test_a_run_that_ends_waits_for_no_container_that_hangs(controller, provider):
    async with controller(ephemeral=True) as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        container = provider.containers[first.container.id]
        container.may_end_sessions.clear()
        deleting = asyncio.create_task(sandboxes.delete("s1"))
        await until(lambda: container.requests_to_end == 1)
    await deleting
    assert not provider.containers


async def test_where_a_session_cannot_be_ended_at_all_its_container_goes_with_it(controller, provider):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        await provider.containers[first.container.id]._runner.cleanup()
        await sandboxes.delete("s1")

        await until(lambda: not provider.containers)


async def test_a_container_that_ends_before_its_start_is_through_did_not_start(controller, provider):
    async with controller() as sandboxes:
        provider.may_start.clear()
        creating = asyncio.create_task(sandboxes.create(asked("s1")))
        await until(lambda: provider.starts)
        provider._on_end(provider.starts[0], Ended(cause="oom_killed", detail="out of memory"))
        provider._on_end("gymbox-stranger", Ended(cause="killed", detail="not ours"))
        provider.may_start.set()
        with pytest.raises(StartFailed, match="out of memory"):
            await creating
        assert provider.containers == {}


# --- stopping and starting again


async def test_the_next_controller_adopts_what_runs_with_its_tokens(controller, provider, table):
    async with controller() as sandboxes:
        before = [sandboxes.views.of(await sandboxes.create(asked(f"s{n}", labels={"n": str(n)}))) for n in range(20)]
    async with controller() as sandboxes:
        after = {view.id: view for view in map(sandboxes.views.of, sandboxes.all())}

        assert len(provider.starts) == len(provider.containers) == len(after) == 20
        assert all(after[view.id].tokens == view.tokens for view in before)
        assert all(after[view.id].labels == view.labels for view in before)
        await until(lambda: all(sandboxes.views.status(sandbox) == "ready" for sandbox in sandboxes.all()))
        assert (await sandboxes.create(asked("s3", labels={"n": "3"}))).container.id == before[3].container
        with pytest.raises(Conflict):
            await sandboxes.create(asked("s3"))
        await provider.end(before[3].container, "killed")
        assert sandboxes.get("s3").ended.cause == "killed"


async def test_sandboxes_in_shared_containers_are_adopted_by_their_sessions(controller, provider):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        provider.containers[first.container.id].sessions |= {"s1", "../x"}
    async with controller() as sandboxes:
        assert [sandbox.id for sandbox in sandboxes.all()] == ["s1"]
        assert (await sandboxes.create(asked("s1", "shared"))).container.id == first.container.id
        assert (await sandboxes.create(asked("s2", "shared"))).container.id == first.container.id


async def test_an_empty_shared_container_is_not_adopted(controller, provider):
    async with controller(idle=60) as sandboxes:
        await sandboxes.create(asked("s1", "shared"))
        await sandboxes.delete("s1")
        assert provider.containers
    async with controller():
        await until(lambda: not provider.containers)


async def test_a_sandbox_on_a_shared_container_is_adopted_with_its_request_before_its_reset_too(controller):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared", labels={"team": "a"}))
        second = await sandboxes.create(asked("s2", "shared"))
        assert first.container is second.container
        await sandboxes.delete("s2")
    async with controller() as sandboxes:
        assert (await sandboxes.create(asked("s1", "shared", labels={"team": "a"}))).container.id == first.container.id
        with pytest.raises(Conflict):
            await sandboxes.create(asked("s1", "shared"))
        with pytest.raises(NotFound):
            sandboxes.get("s2")


async def test_a_changed_environment_takes_no_new_sandboxes_into_old_containers(controller, provider, environments):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared"))
        provider.containers[first.container.id].sessions.add("s1")
    (environments["shared"].folder / "server.py").write_text("# changed\n")
    environments["shared"].__dict__.pop("digest", None)
    async with controller() as sandboxes:
        assert sandboxes.get("s1").container.id == first.container.id
        assert (await sandboxes.create(asked("s2", "shared"))).container.id != first.container.id


async def test_what_does_not_answer_or_is_unknown_is_removed_at_start(controller, provider, environments):
    async with controller() as sandboxes:
        dead = await sandboxes.create(asked("s1"))
        await sandboxes.create(asked("s2", "shared"))
        await provider.containers[dead.container.id]._runner.cleanup()
    del environments["shared"]
    async with controller() as sandboxes:
        assert sandboxes.all() == []
        assert provider.containers == {}


async def test_a_container_whose_labels_are_not_ours_is_removed(controller, provider):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1"))
        provider.containers[first.container.id].spec.labels["gymbox.request"] = "{}"
    async with controller() as sandboxes:
        assert sandboxes.all() == []
        assert provider.containers == {}


async def test_the_proxy_keeps_its_routes_until_the_next_controller_has_adopted_what_runs(controller, table):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
    before = len(table.tables)
    async with controller() as sandboxes:
        await until(lambda: sandboxes.views.status(sandboxes.get("s1")) == "ready")

    assert all([route.sandbox for route in each.routes] == ["s1"] for each in table.tables[before:])


async def test_one_that_ends_while_others_are_adopted_is_not_handed_out(controller, provider):
    async with controller() as sandboxes:
        dead, alive = [(await sandboxes.create(asked(id))).container.id for id in ("s1", "s2")]
    provider.containers[dead].on_healthz = lambda: asyncio.get_running_loop().call_later(
        0.02, provider._on_end, dead, Ended(cause="killed", detail="it was killed")
    )
    provider.containers[alive].healthz_delay = 0.2
    async with controller() as sandboxes:
        assert [sandbox.id for sandbox in sandboxes.all()] == ["s2"]
        await until(lambda: dead not in provider.containers)


async def test_a_controller_that_cannot_adopt_lets_go_of_the_provider(controller, provider):
    provider.list_error = Unavailable("the engine is away")
    with pytest.raises(Unavailable):
        async with controller():
            pass

    assert provider._on_end is None


async def test_an_intent_to_delete_survives_a_crash(controller, provider):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        provider.stop_errors = 1
        await sandboxes.delete("s1")
        # it goes before the second try
    assert provider.containers
    async with controller() as sandboxes:
        assert sandboxes.all() == []
        assert provider.containers == {}


async def test_an_ephemeral_controller_leaves_nothing(controller, provider, folder):
    async with controller(ephemeral=True) as sandboxes:
        await sandboxes.create(asked("s1"))
        await sandboxes.create(asked("s2", "shared"))

    assert provider.containers == {}
    assert list(folder.glob("run-*")) == []


async def test_a_draining_controller_finishes_starts_and_takes_no_new_ones(controller, provider):
    async with controller() as sandboxes:
        provider.may_start.clear()
        creating = asyncio.create_task(sandboxes.create(asked("s1")))
        await until(lambda: provider.starts)
        draining = asyncio.create_task(sandboxes.drain())
        await until(lambda: sandboxes.draining)
        with pytest.raises(Unavailable):
            await sandboxes.create(asked("s2"))
        provider.may_start.set()
        await draining

        assert sandboxes.views.status(await creating) == "ready"
    assert provider.containers


async def test_a_start_that_outlives_the_drain_is_stopped_and_may_be_asked_again(controller, provider):
    async with controller(drain=0.01) as sandboxes:
        provider.may_start.clear()
        creating = asyncio.create_task(sandboxes.create(asked("s1")))
        await until(lambda: provider.starts)
        await sandboxes.drain()

    with pytest.raises(Unavailable):
        await creating
    assert provider.containers == {}


async def test_metrics_count_by_environment_status_and_cause(controller):
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
        await sandboxes.create(asked("s2"))
        await sandboxes.delete("s2")
        text = sandboxes.metrics.text().decode()

        assert 'gymbox_sandboxes{environment="alone",status="ready"} 1.0' in text
        assert 'gymbox_sandboxes_ended_total{cause="deleted",environment="alone"} 1.0' in text
        assert 'gymbox_start_seconds_count{environment="alone",phase="ready"} 2.0' in text
        assert "gymbox_containers 1.0" in text
        assert "gymbox_start_queue_length 0.0" in text


async def test_a_sandbox_of_which_nothing_was_noted_is_found_once_it_was_reset(controller, provider, folder, caplog):
    async with controller() as sandboxes:
        first = await sandboxes.create(asked("s1", "shared", labels={"team": "a"}))
        provider.containers[first.container.id].sessions.add("s1")
    (folder / "main" / "claims" / "s1").unlink()
    async with controller() as sandboxes:
        assert sandboxes.get("s1").container.id == first.container.id
        assert await sandboxes.create(asked("s1", "shared")) is sandboxes.get("s1")  # what was asked is not known
        with pytest.raises(Conflict):
            await sandboxes.create(asked("s1", "alone"))


async def test_what_cannot_be_forgotten_is_told_and_holds_nothing_up(controller, provider, folder, caplog):
    async with controller(idle=60) as sandboxes:
        await sandboxes.create(asked("s1", "shared"))
        claim = folder / "main" / "claims" / "s1"
        claim.unlink()
        claim.mkdir()
        await sandboxes.delete("s1")
        assert "cannot forget" in caplog.text
        claim.rmdir()
