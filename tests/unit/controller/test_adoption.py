"""What the next controller makes of containers whose way out has ended, whose claims are lost or that say too much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from gymbox.controller.container import MOST_TOLD
from gymbox.errors import Unavailable
from gymbox.providers import StartSpec
from gymbox_sandbox.lifecycle import PoolSettings

from .conftest import asked, environment, until


@pytest.fixture
def online(environments: dict[str, Any], folder: Any) -> None:
    environments["online"] = environment(folder / "environments", "online", network="open")


async def pooled(sandboxes: Any, number: int) -> None:
    async with asyncio.timeout(10):
        while sandboxes.pools.views()[0].ready < number:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("online")
async def test_the_way_out_of_what_is_adopted_is_opened_again_and_nothing_is_started(controller, provider):
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s1", "online"))
        await sandboxes.create(asked("s2"))
    async with controller() as sandboxes:
        assert provider.reopened == [sandbox.container.id] and len(provider.starts) == 2
        assert {each.id for each in sandboxes.all()} == {"s1", "s2"}


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("broken", ["server", "way"])
async def test_what_does_not_answer_or_has_no_way_out_any_more_is_removed_and_not_replaced(
    controller, provider, monkeypatch, broken
):
    async def refused(spec: StartSpec) -> None:
        raise Unavailable("the directory allows no socket")

    async with controller() as sandboxes:
        container = (await sandboxes.create(asked("s1", "online"))).container.id
    if broken == "way":
        monkeypatch.setattr(provider, "reopen", refused)
    else:
        await provider.containers[container]._runner.cleanup()
    async with controller() as sandboxes:
        assert sandboxes.all() == [] and provider.stops == [container]
    assert provider.starts == [container] and provider.reopened == []


async def test_where_a_claim_cannot_be_read_no_container_that_may_be_its_is_spare(
    controller, provider, folder, caplog
):
    claims, pools = folder / "main" / "claims", {"alone": PoolSettings(target=2)}
    async with controller(pools=pools) as sandboxes:
        await pooled(sandboxes, 2)
        used = await sandboxes.create(asked("used"))
        kept = await sandboxes.create(asked("kept"))
        await pooled(sandboxes, 2)
        shared = await sandboxes.create(asked("shared", "shared"))
    before = set(provider.containers)
    (claims / "used").write_text("{")
    async with controller(pools=pools, killed=True) as sandboxes:
        assert set(provider.containers) & before == {kept.container.id, shared.container.id}
        assert {each.id for each in sandboxes.all()} == {"kept", "shared"}
        assert used.container.id in provider.stops and not (claims / "used").exists()
        await pooled(sandboxes, 2)
        after = set(provider.containers)
    assert "what used claimed cannot be read" in caplog.text
    async with controller(pools=pools):  # the next one knows all again
        assert set(provider.containers) == after


async def test_a_server_that_answers_endlessly_is_not_listened_to(controller, provider, monkeypatch):
    async def much(*_: Any) -> web.Response:
        return web.json_response({"sessions": [], "resets": {"": 1}, "more": "x" * MOST_TOLD})

    monkeypatch.setattr("tests.unit.controller.conftest.InProcessContainer._sessions", much)
    monkeypatch.setattr("tests.unit.controller.conftest.InProcessContainer._healthz", much)
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s1"))
        await sandboxes.views.learn_resets([sandbox])
        assert sandbox.reset is None
    async with controller() as sandboxes:
        assert sandboxes.all() == [] and provider.stops == [sandbox.container.id]


def change(environments: dict[str, Any], folder: Any, name: str, **manifest: Any) -> None:
    """As an edit of the environment's folder is: its digest is another."""
    (folder / "environments" / name / "environment.yaml").write_text(str(manifest))
    environments[name] = environment(folder / "environments", name, **manifest)


@pytest.mark.parametrize("label", ["gymbox.manifest", None])
async def test_sandboxes_that_share_a_container_keep_their_sessions_whatever_the_manifest_says_by_now(
    controller, provider, environments, folder, table, label
):
    async with controller() as sandboxes:
        container = (await sandboxes.create(asked("s1", "shared"))).container.id
        await sandboxes.create(asked("s2", "shared"))
    provider.containers[container].sessions |= {"s1", "s2"}
    if label is None:  # made before there was such a label
        del provider.containers[container].spec.labels["gymbox.manifest"]
    change(environments, folder, "shared", sessions=1)
    async with controller() as sandboxes:
        await sandboxes.until_ready(sandboxes.get("s2"))
        assert [table[id].session for id in ("s1", "s2")] == ["s1", "s2"]
        await sandboxes.delete("s1")
        assert provider.containers[container].sessions == {"s2"}
        assert (await sandboxes.create(asked("s3", "shared"))).container.id != container


@pytest.mark.parametrize("label", ["gymbox.manifest", None])
async def test_a_sandbox_that_has_its_container_alone_keeps_it_alone(
    controller, provider, environments, folder, table, label
):
    async with controller() as sandboxes:
        container = (await sandboxes.create(asked("s1"))).container.id
    if label is None:
        del provider.containers[container].spec.labels["gymbox.manifest"]
    change(environments, folder, "alone", sessions=4)
    async with controller() as sandboxes:
        await sandboxes.until_ready(sandboxes.get("s1"))
        assert table["s1"].session == ""
        assert (await sandboxes.create(asked("s2"))).container.id != container


@pytest.mark.usefixtures("online")
async def test_what_is_adopted_keeps_the_network_and_the_time_that_it_was_made_with(
    controller, provider, environments, folder
):
    change(environments, folder, "alone", timeouts={"task": 1000})
    async with controller() as sandboxes:
        online = (await sandboxes.create(asked("online", "online"))).container.id
        await sandboxes.create(asked("offline"))
    change(environments, folder, "online", network={"allow": ["example.org"]})
    change(environments, folder, "alone", network="open", timeouts={"task": 1})
    async with controller() as sandboxes:
        assert provider.reopened == [online]
        assert sandboxes.get("online").container.environment.manifest.network == "open"
        assert sandboxes.get("offline").environment.manifest.timeouts.task == 1000


MANY = {"image": "postgres@sha256:" + "0" * 64, "command": ["postgres"], "env": {"A": "b"}, "health": {"test": ["ok"]}}


@pytest.mark.parametrize(
    "manifest",
    [
        {"network": {"allow": ["example.org", "*.example.com:8443"], "models": True}},
        {"services": {"db": MANY, "cache": {"build": "services/cache", "tmpfs": ["/data"], "limits": {"cpus": 0.5}}}},
        {"judge": True},
        {"judge": {"calls": 7, "timeout": 1.5}},
        {
            "image": {"packages": ["jq"]},
            "hidden_fields": ["x"],
            "artifacts": ["out/**/*.txt"],
            "reverify": "artifacts",
        },
    ],
    ids=lambda manifest: "+".join(manifest),
)
async def test_what_is_adopted_has_every_part_of_the_manifest_that_it_was_made_with(
    controller, provider, environments, folder, manifest
):
    change(environments, folder, "alone", **manifest)
    made = environments["alone"].manifest
    async with controller() as sandboxes:
        await sandboxes.create(asked("s1"))
    change(environments, folder, "alone")
    assert environments["alone"].manifest != made
    async with controller() as sandboxes:
        assert sandboxes.get("s1").environment.manifest == made
        assert sandboxes.get("s1").container.environment.manifest == made


async def test_a_folder_goes_of_whose_container_a_crash_left_nothing_else(controller, provider, folder):
    async with controller() as sandboxes:
        kept = (await sandboxes.create(asked("kept"))).container.id
        stuck = (await sandboxes.create(asked("stuck"))).container.id
    sockets, deletes = folder / "main" / "s", folder / "main" / "deletes"
    (sockets / "resolv.conf").touch()
    for name in ("half-removed", "half-made"):
        (sockets / name).mkdir()
        (sockets / name / "server.sock").touch()
    (deletes / stuck).touch()
    provider.stop_errors = 1  # its folder goes once its container does
    async with controller() as sandboxes:
        assert {each.id for each in sandboxes.all()} == {"kept"} and len(list(sockets.iterdir())) == 3
        await until(lambda: len(list(sockets.iterdir())) == 2)
        assert kept in provider.containers and not list(deletes.iterdir())
