"""Adoption: `docker kill` of the controller with 20 live sandboxes, then a restart: all adopted, none lost or leaked.

The servers run from compose/compose.yaml, as a project of its own on ports of its own. It takes some minutes the first
time: images are built.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from report import Figure, finish, within

ROOT = Path(__file__).parents[1]
SANDBOXES = 20


class Servers:
    """The compose project, within a block."""

    def __init__(self, folder: Path) -> None:
        self.project = f"gymbox-bench-{secrets.token_hex(4)}"
        self.shared = Path("/run") / self.project
        self.controller, self.proxy = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
        self.token_file = folder / "gymbox" / "token"
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "GYMBOX_SHARED": str(self.shared),
            "GYMBOX_CONFIG": str(folder),
            "GYMBOX_CONTROLLER_PORT": self.controller.rpartition(":")[2],
            "GYMBOX_PROXY_PORT": self.proxy.rpartition(":")[2],
        }

    def compose(self, *arguments: str) -> str:
        command = ["docker", "compose", "-f", str(ROOT / "compose/compose.yaml"), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def __enter__(self) -> Servers:
        self.compose("up", "--build", "--wait", "--detach")
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes")
        shutil.rmtree(self.shared, ignore_errors=True)

    def call(self, method: str, url: str, body: Any = None, token: str | None = None) -> Any:
        token = token or self.token_file.read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def live(self) -> set[str]:
        return {view["id"] for view in self.call("GET", f"{self.controller}/sandboxes?status=ready")}

    def containers(self) -> int:
        """Containers of sandboxes that this project's controller has made."""
        mount = ["--filter", "label=gymbox.environment", "--format", '{{.Label "gymbox.directory"}}']
        found = subprocess.run(["docker", "ps", "-a", *mount], capture_output=True, text=True, check=True)
        return sum(line.startswith(str(self.shared)) for line in found.stdout.splitlines())


def measure(servers: Servers) -> list[Figure]:
    def create(number: int) -> dict[str, Any]:
        body = {"id": f"bench-{number}", "environment": "counter"}
        view: dict[str, Any] = servers.call("POST", f"{servers.controller}/sandboxes", body)
        control = view["tokens"]["control"]
        servers.call("POST", f"{view['url']}/reset", {"task": {"id": "x", "initial_count": number}}, control)
        return view

    def value(view: dict[str, Any]) -> int:
        url = f"{view['url']}/tools/get_counter_value"
        answer = servers.call("POST", url, {}, view["tokens"]["tools"])
        return int(json.loads(answer["output"])["count"])

    with ThreadPoolExecutor(SANDBOXES) as pool:
        views = list(pool.map(create, range(SANDBOXES)))
    subprocess.run(["docker", "kill", servers.compose("ps", "-q", "controller").strip()], check=True)
    served = sum(value(view) == number for number, view in enumerate(views))
    before = time.perf_counter()
    servers.compose("up", "--wait", "--detach", "--no-recreate", "controller")
    took = time.perf_counter() - before
    adopted = servers.live() & {view["id"] for view in views}
    kept = sum(value(view) == number for number, view in enumerate(views))
    for view in views:
        servers.call("DELETE", f"{servers.controller}/sandboxes/{view['id']}")
    print(f"restart until ready: {took:.1f} s")
    return [
        within(0, "not served while the controller is away", SANDBOXES - served, "sandboxes"),
        within(0, "not adopted", SANDBOXES - len(adopted), "sandboxes"),
        within(0, "adopted without their state or tokens", SANDBOXES - kept, "sandboxes"),
        within(0, "leaked after all were deleted", servers.containers(), "containers"),
    ]


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name, Servers(Path(name)) as servers:
        figures = measure(servers)
    finish("adoption", figures, [f"{SANDBOXES} live sandboxes of counter, each with a state of its own"])


if __name__ == "__main__":
    main()
