"""The servers in containers, started from the compose file that users start, and used as they use them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from testcontainers.compose import DockerCompose

ROOT = Path(__file__).parents[3]
ROWS = [json.loads(line) for line in (ROOT / "environments/counter/data/example.jsonl").read_bytes().splitlines()]
SERVICES = ("controller", "proxy", "model", "agent")
MANY = 20

pytestmark = pytest.mark.timeout(900)


class Stack:
    """A project of its own, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.project = f"gymbox-test-{secrets.token_hex(4)}"
        self.controller, self.proxy = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.shared = Path("/run") / self.project
        self.settings = {
            "COMPOSE_PROJECT_NAME": self.project,
            "GYMBOX_SHARED": str(self.shared),
            "GYMBOX_CONFIG": str(folder),
            "GYMBOX_RUNS": str(folder / "runs"),
            "GYMBOX_CONTROLLER_PORT": self.controller.rpartition(":")[2],
            "GYMBOX_PROXY_PORT": self.proxy.rpartition(":")[2],
            "GYMBOX_IMAGE": "gymbox-platform:test",
        }
        env_file = folder / "compose.env"
        env_file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self.services = DockerCompose(ROOT / "compose", "compose.yaml", build=True, env_file=str(env_file))
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
        self.token_file = folder / "gymbox" / "token"

    def up(self, *services: str) -> None:
        """Bring servers up again, those that run left as they are."""
        command = [*self.services.docker_compose_command(), "up", "--wait", "--detach", "--no-recreate", *services]
        done = subprocess.run(command, cwd=self.services.context, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{self.services.get_logs()}"

    def down(self) -> None:
        """Take all down as `make down` does."""
        command = [str(ROOT / "scripts" / "compose.sh"), "down", "--volumes"]
        done = subprocess.run(
            command, env={**os.environ, **self.settings}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def container(self, service: str) -> str:
        found = self.services.get_container(service).ID
        assert found is not None
        return found

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def curl(self, method: str, url: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
        command = ["curl", "-sS", "-m", "300", "-X", method, url, "-w", "\n%{http_code}"]
        command += ["-H", f"Authorization: Bearer {token or self.token}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(text) if text else None

    def create(self, id: str) -> dict[str, Any]:
        status, view = self.curl("POST", f"{self.controller}/sandboxes", {"id": id, "environment": "counter"})
        assert (status, view["status"]) == (201, "ready"), view
        return dict(view)

    def kill(self, service: str) -> None:
        subprocess.run(["docker", "kill", self.container(service)], check=True, capture_output=True)

    def sandboxes(self) -> list[dict[str, Any]]:
        status, found = self.curl("GET", f"{self.controller}/sandboxes?status=ready")
        assert status == 200
        return list(found)


def free_ports(count: int) -> list[int]:
    """Ports that were free just now; held together, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def count(stack: Stack, view: dict[str, Any], by: int) -> None:
    """Call a tool of a sandbox as an agent does, with the token that an agent has."""
    url = f"{stack.proxy}/sandboxes/{view['id']}/tools/increment_counter"
    status, result = stack.curl("POST", url, {"count": by}, token=view["tokens"]["tools"])
    assert (status, result["is_error"]) == (200, False), result


def score(stack: Stack, view: dict[str, Any], row: dict[str, Any]) -> float:
    status, verdict = stack.curl(
        "POST",
        f"{stack.proxy}/sandboxes/{view['id']}/verify",
        {"task": row, "response": {"output": []}},
        token=view["tokens"]["control"],
    )
    assert status == 200, verdict
    return float(verdict["reward"])


def reset(stack: Stack, view: dict[str, Any], row: dict[str, Any]) -> None:
    public = {name: value for name, value in row.items() if name not in ("expected_count", "gold_replies")}
    url = f"{stack.proxy}/sandboxes/{view['id']}/reset"
    status, answer = stack.curl("POST", url, {"task": public}, token=view["tokens"]["control"])
    assert status == 200, answer


@pytest.fixture(scope="module")
def stack(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("config"))
    try:
        made.services.start()
        yield made
        left_alive = made.create("left-alive")["container"]
        made.kill("controller")
        made.down()
        assert not engine.containers.list(all=True, filters={"id": left_alive})
        assert not list(made.shared.rglob("*")), "the controller's state is left"
    finally:
        made.services.stop()
        left = [path for path in made.shared.rglob("*") if path.is_socket()]
        shutil.rmtree(made.shared, ignore_errors=True)
    assert not left
    named = engine.containers.list(
        all=True, ignore_removed=True, filters={"label": f"com.docker.compose.project={made.project}"}
    )
    assert not named


def test_only_the_controller_has_the_engines_socket_and_nothing_listens_beyond_loopback(
    stack: Stack, engine: Any
) -> None:
    for service in SERVICES:
        found = engine.containers.get(stack.container(service)).attrs
        host, mounts = found["HostConfig"], {mount["Source"] for mount in found["Mounts"]}
        assert ("/var/run/docker.sock" in mounts) == (service == "controller")
        assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] and host["Init"] and not host["Privileged"]
        assert "no-new-privileges" in host["SecurityOpt"]
        assert (found["Config"]["User"] == "0:0") == (service == "controller")
        assert "gbx_" not in json.dumps(found["Config"]), "a token is in the container's configuration"
        bound = [one["HostIp"] for ports in (host["PortBindings"] or {}).values() for one in ports]
        assert set(bound) <= {"127.0.0.1"}


def test_the_admin_token_is_for_its_owner_only(stack: Stack) -> None:
    assert stack.token_file.stat().st_mode & 0o777 == 0o600
    status, problem = stack.curl("GET", f"{stack.controller}/sandboxes", token="gbx_admin_wrong")
    assert (status, problem["kind"]) == (401, "unauthorized")


def test_a_task_goes_all_the_way_by_curl(stack: Stack) -> None:
    row = ROWS[0]
    view = stack.create("by-curl")
    assert stack.create("by-curl")["container"] == view["container"]  # the same request again
    reset(stack, view, row)
    count(stack, view, row["expected_count"] - row["initial_count"])
    verify = f"{stack.proxy}/sandboxes/by-curl/verify"
    assert stack.curl("POST", verify, {}, token=view["tokens"]["tools"])[0] == 403
    assert score(stack, view, row) == 1.0
    assert stack.curl("DELETE", f"{stack.controller}/sandboxes/by-curl")[0] in (200, 204)
    assert stack.curl("POST", verify, {}, token=view["tokens"]["control"])[0] == 410


def test_gymbox_run_uses_the_running_controller(stack: Stack, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from gymbox.cli import main; main()", "run", "environment=counter"]
    command += ["model=scripted", "runner.limit=3", f"controller={stack.controller}"]
    command += [f"runner.output={tmp_path / 'run'}"]
    done = subprocess.run(command, env=stack.environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "run" / "rollouts.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [1.0] * 3
    assert stack.sandboxes() == []


def test_the_controller_does_a_run_and_keeps_it_when_it_is_killed(stack: Stack) -> None:
    runs = f"{stack.controller}/v1/runs"
    overrides = ["environment=counter", "model=scripted", "runner.limit=4"]
    status, made = stack.curl("POST", runs, {"id": "mine", "overrides": overrides})
    assert status == 201, made
    until = time.monotonic() + 300
    while (view := stack.curl("GET", f"{runs}/mine")[1])["live"]:
        assert time.monotonic() < until, view
        time.sleep(0.5)
    assert (view["detail"], view["status"], view["done"], view["reward"]) == ("", "finished", 4, 1.0)

    stack.kill("controller")
    stack.up("controller")
    assert stack.curl("GET", f"{runs}/mine")[1]["done"] == 4
    kept = Path(stack.settings["GYMBOX_RUNS"]) / "mine" / "rollouts.jsonl"
    assert len(kept.read_bytes().splitlines()) == 4
    assert stack.curl("DELETE", f"{runs}/mine") == (204, None)


def test_model_and_agent_are_reached_through_the_proxy(stack: Stack) -> None:
    status, models = stack.curl("GET", f"{stack.proxy}/models/scripted/v1/models")
    assert (status, models["object"]) == (200, "list")
    status, result = stack.curl("POST", f"{stack.proxy}/agents/tool_loop/run?environment=counter", ROWS[1])
    assert (status, result["reward"], result["error"]) == (200, 1.0, None)
    assert stack.curl("GET", f"{stack.proxy}/models/scripted/v1/models", token="gbx_sbx_other")[0] == 401


def test_live_sandboxes_outlive_a_killed_controller_and_are_adopted(stack: Stack) -> None:
    with ThreadPoolExecutor(MANY) as pool:
        views = list(pool.map(stack.create, [f"adopted-{number}" for number in range(MANY)]))
        for view, row in zip(views, ROWS, strict=False):
            reset(stack, view, row)

        stack.kill("controller")
        for view, row in zip(views, ROWS, strict=False):  # the proxy does not need it
            count(stack, view, row["expected_count"] - row["initial_count"])

        stack.up("controller")
        assert {view["id"] for view in stack.sandboxes()} == {view["id"] for view in views}
        stack.up()
        assert [score(stack, view, row) for view, row in zip(views, ROWS, strict=False)] == [1.0] * MANY

        deleted = pool.map(lambda view: stack.curl("DELETE", f"{stack.controller}/sandboxes/{view['id']}")[0], views)
        assert set(deleted) <= {200, 204}
    assert stack.sandboxes() == []


def test_a_killed_proxy_is_told_its_routes_again(stack: Stack) -> None:
    view = stack.create("behind-proxy")
    reset(stack, view, ROWS[2])
    stack.kill("proxy")
    with pytest.raises(subprocess.CalledProcessError):
        stack.curl("GET", f"{stack.proxy}/healthz")
    stack.up("proxy")
    count(stack, view, ROWS[2]["expected_count"] - ROWS[2]["initial_count"])
    assert score(stack, view, ROWS[2]) == 1.0
    stack.curl("DELETE", f"{stack.controller}/sandboxes/behind-proxy")
