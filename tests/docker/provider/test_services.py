"""Services: containers that start before a sandbox, are reached from it by name, and go with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import docker.errors
import pytest
from gymbox.errors import Conflict, StartFailed
from gymbox.providers import Started
from gymbox.providers.container import CONTROLLER_LABEL, SERVICE_LABEL
from gymbox.providers.service_container import service_name

FETCH = """
import socket, sys, urllib.request
for url in sys.argv[1:]:
    try:
        print("OPEN", url, urllib.request.urlopen(url, timeout=5).read().decode().strip()[:40])
    except Exception as error:
        print("SHUT", url, error)
"""
CHECK = ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/hello', timeout=2)"]
SERVE = "echo starting; echo hi from $WHO > /srv/www/hello; exec python3 -m http.server 8000 -d /srv/www"


@pytest.fixture
def service(measured_image: str) -> Callable[..., dict[str, Any]]:
    """A web server as a service, with what a test changes of it."""

    def make(script: str = SERVE, **changes: Any) -> dict[str, Any]:
        return {
            "image": measured_image,
            "command": ["sh", "-c", script],
            "env": {"WHO": "web"},
            "user": "10001",
            "tmpfs": ["/srv/www"],
            "health": {"test": CHECK, "within": 30},
            "limits": {"memory_mb": 64, "pids": 32, "tmpfs_mb": 8},
            **changes,
        }

    return make


@pytest.fixture
def fetch(run_in: Any) -> Callable[..., Any]:
    """Whether each address is open from a sandbox, as its agent sees it."""

    async def fetch(started: Started, *urls: str) -> str:
        return str((await run_in(started, ["python3", "-c", FETCH, *urls], timeout=60))["stdout"])

    return fetch


def services_of(engine: Any, id: str) -> list[Any]:
    filters = {"label": f"{SERVICE_LABEL}={id}"}
    return list(engine.containers.list(all=True, ignore_removed=True, filters=filters))


async def test_services_are_reached_by_name_and_nothing_else_is(
    sandboxes: Any, environment: Any, engine: Any, service: Any, fetch: Any
) -> None:
    second = service(env={"WHO": "second"})
    started = await sandboxes.start(environment(services={"web": service(), "second": second}))
    shown = await fetch(started, "http://web:8000/hello", "http://second:8000/hello", "http://example.org/")
    assert shown.splitlines()[:2] == [
        "OPEN http://web:8000/hello hi from web",
        "OPEN http://second:8000/hello hi from second",
    ]
    assert "SHUT http://example.org/" in shown
    network = engine.networks.get(f"gymbox-{started.id}")
    assert network.attrs["Internal"] is True
    other = await sandboxes.start(environment(services={"web": service(env={"WHO": "other"})}))
    address = services_of(engine, started.id)[0].attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"]
    assert "SHUT" in await fetch(other, f"http://{address}:8000/hello")  # another sandbox's are not reached
    assert "hi from other" in await fetch(other, "http://web:8000/hello")
    assert "starting" in await sandboxes.provider.logs(started.id)
    assert [found.id for found in await sandboxes.provider.list() if found.id.endswith(".web")] == []


async def test_a_service_is_as_hardened_as_a_sandbox(
    sandboxes: Any, environment: Any, engine: Any, service: Any
) -> None:
    started = await sandboxes.start(environment(services={"web": service(), "root": service(user=None)}))
    web, root = (engine.containers.get(service_name(started.id, name)).attrs for name in ("web", "root"))
    for attrs in (web, root):
        host = attrs["HostConfig"]
        assert host["Privileged"] is False and host["ReadonlyRootfs"] is True and host["CapDrop"] == ["ALL"]
        assert host["Memory"] == host["MemorySwap"] == 64 * 1024**2 and host["PidsLimit"] == 32
        assert not host["Binds"] and not host["PortBindings"] and not attrs["Mounts"]
        assert "no-new-privileges:true" in host["SecurityOpt"] and host["Dns"] == ["127.0.0.1"]
    assert not web["HostConfig"]["CapAdd"]
    status, output = engine.containers.get(service_name(started.id, "web")).exec_run(
        ["sh", "-c", "touch /etc/x; mount -t tmpfs x /srv; grep CapEff /proc/1/status"]
    )
    assert b"CapEff:\t0000000000000000" in output and output.count(b"\n") >= 3, (status, output)


async def test_a_sandbox_ends_with_its_service_and_says_which_and_why(
    sandboxes: Any, environment: Any, engine: Any, service: Any
) -> None:
    started = await sandboxes.start(environment(services={"web": service("echo the last words; " + SERVE)}))
    engine.containers.get(service_name(started.id, "web")).kill()
    id, ended = await sandboxes.ended()
    assert id == started.id and ended.cause == "killed"
    assert ended.detail.startswith("service web was killed from outside") and "the last words" in ended.logs
    await sandboxes.provider.stop(started.id)
    assert not services_of(engine, started.id)


async def test_services_and_network_go_with_the_sandbox(
    sandboxes: Any, environment: Any, engine: Any, service: Any
) -> None:
    started = await sandboxes.start(environment(services={"web": service()}))
    assert len(services_of(engine, started.id)) == 1
    await sandboxes.provider.stop(started.id)
    assert not services_of(engine, started.id)
    with pytest.raises(docker.errors.NotFound):
        engine.networks.get(f"gymbox-{started.id}")
    assert sandboxes.ends.empty()
    await sandboxes.provider.stop(started.id)  # a second time is fine


@pytest.mark.parametrize(
    ("script", "health", "told", "log"),
    [
        ("echo no such table; exit 3", {"test": ["true"]}, "ended by itself with exit code 3", "no such table"),
        (
            "echo going on; sleep 60",
            {"test": ["false"], "within": 1.5},
            "was not healthy within 1.5 s (false)",
            "going on",
        ),
        ("echo hanging; sleep 60", {"test": ["sleep", "9"], "within": 1, "timeout": 0.3}, "(sleep 9)", "hanging"),
        ("echo no check; sleep 60", {"test": ["/no/such/check"], "within": 1}, "(/no/such/check: ", "no check"),
    ],
    ids=["it ends", "never healthy", "the check hangs", "there is no such check"],
)
async def test_a_service_that_does_not_come_up_fails_the_start_with_its_log(
    sandboxes: Any, environment: Any, engine: Any, service: Any, script: str, health: Any, told: str, log: str
) -> None:
    spec = sandboxes.spec(environment(services={"web": service(script, health=health)}))
    with pytest.raises(StartFailed) as caught:
        await sandboxes.provider.start(spec, lambda phase: None)
    ended = caught.value.ended
    assert ended.cause == "failed_to_start" and told in ended.detail and log in ended.logs
    assert ended.detail.startswith("service web ") and spec.id not in ended.detail
    assert f"its log ends with: {log}" in str(caught.value)
    assert not services_of(engine, spec.id) and not spec.directory.exists()


async def test_after_a_crash_whole_sandboxes_are_found_and_others_are_swept(
    sandboxes: Any, make_sandboxes: Any, environment: Any, engine: Any, service: Any, fetch: Any
) -> None:
    made = environment(services={"web": service()})
    whole, lacking, alone = [await sandboxes.start(made) for _ in range(3)]
    await sandboxes.provider.close()
    await asyncio.to_thread(engine.containers.get(service_name(lacking.id, "web")).remove, force=True)
    await asyncio.to_thread(engine.containers.get(alone.id).remove, force=True)
    await sandboxes.provider.open(sandboxes.controller_id, lambda id, ended: sandboxes.ends.put_nowait((id, ended)))
    assert [found.id for found in await sandboxes.provider.list()] == [whole.id]
    assert not services_of(engine, alone.id) and "hi from web" in await fetch(whole, "http://web:8000/hello")
    engine.containers.get(service_name(whole.id, "web")).kill()
    id, ended = await sandboxes.ended()  # the next controller hears of a service's end, too
    assert id == whole.id and "service web" in ended.detail


async def test_a_sandbox_whose_id_looks_like_anothers_service_is_left_alone(
    sandboxes: Any, environment: Any, engine: Any, service: Any
) -> None:
    id = f"{sandboxes.spec(environment()).id}-pair"
    other = await sandboxes.start(environment(), f"{id}.web")
    before = engine.containers.get(other.id).id
    await sandboxes.start(environment(services={"web": service()}), id)
    await sandboxes.provider.stop(id)
    assert engine.containers.get(other.id).id == before and sandboxes.ends.empty()


async def test_a_container_that_has_a_services_name_and_is_none_is_a_conflict_and_left_alone(
    sandboxes: Any, environment: Any, engine: Any, service: Any, measured_image: str
) -> None:
    spec = sandboxes.spec(environment(services={"web": service()}))
    labels = {CONTROLLER_LABEL: sandboxes.controller_id}
    name = service_name(spec.id, "web")
    taken = engine.containers.create(measured_image, ["true"], name=name, labels=labels)
    try:
        with pytest.raises(Conflict, match="no service of"):
            await sandboxes.provider.start(spec, lambda phase: None)
        assert engine.containers.get(name).id == taken.id and not services_of(engine, spec.id)
    finally:
        taken.remove(force=True)
