"""`gymbox serve` as a user starts it: real processes, stopped by SIGTERM."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ROW = json.loads((ROOT / "environments/counter/data/example.jsonl").read_bytes().splitlines()[0])
COMMAND = [sys.executable, "-c", "from gymbox.cli import main; main()", "serve"]


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    token: str

    def call(
        self, path: str, body: Any = None, *, token: str | None = None, host: str | None = None, as_key: bool = False
    ) -> Any:
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        token = self.token if token is None else token
        request.add_header(*(("x-api-key", token) if as_key else ("Authorization", f"Bearer {token}")))
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if host is not None:
            request.add_header("Host", host)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []
    home = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    home.pop("GYMBOX_TOKEN", None)

    def begin(*arguments: str) -> Server:
        process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, env=home, cwd=ROOT)
        running.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            message = str(json.loads(line)["message"]) if line.startswith("{") else ""
            if message.startswith("answering on "):
                token = tmp_path / "config" / "gymbox" / "token"
                return Server(process, message.split()[-1], token.read_text().strip() if token.exists() else "")
        raise AssertionError(f"it did not start: {''.join(said)}")

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()


def test_a_controller_with_a_proxy_in_it_serves_an_agent(start: Start, tmp_path: Path) -> None:
    controller = start(
        *("controller", "provider=process", "--port", "0", "--proxy-port", "0", "--state", str(tmp_path / "s")),
        *("--lease", "50", "--idle", "0", "--drain", "1", "proxy.tools_body_limit=100"),
    )
    assert controller.call("/healthz", token="")[0] == 200
    leased = controller.call("/sandboxes", {"id": "leased", "environment": "counter"})[1]
    assert 20 < leased["expires_at"] - time.time() <= 50
    proxy = Server(controller.process, leased["url"].removesuffix("/sandboxes/leased"), leased["tokens"]["tools"])
    # let through: it has not been reset
    assert proxy.call("/sandboxes/leased/tools/increment_counter", {"count": 1})[0] == 409
    assert proxy.call("/sandboxes/leased/tools/increment_counter", {"count": 1, "more": "x" * 100})[0] == 413
    assert controller.call("/sandboxes", token="")[0] == controller.call("/sandboxes", as_key=True)[0] == 401
    agent = start("agent", "model=scripted", "--port", "0", "--controller", controller.url)
    status, result = agent.call("/run?environment=counter", ROW)
    assert (status, result["reward"], result["error"]) == (200, 1.0, None)
    assert agent.call("/run?environment=counter", ROW, as_key=True)[0] == 401
    assert [view["id"] for view in controller.call("/sandboxes?status=ready")[1]] == ["leased"]
    assert agent.stop() == 0
    assert controller.stop() == 0


def test_the_server_for_the_sdk_of_e2b_makes_sandboxes_of_a_controller_and_ends_them_with_itself(
    start: Start, tmp_path: Path
) -> None:
    controller = start(
        *("controller", "provider=process", "--port", "0", "--proxy-port", "0", "--state", str(tmp_path / "s"))
    )
    (tmp_path / "key").write_text("e2b_key-of-this-test\n")
    e2b = start(
        *("e2b", "--port", "0", "--controller", controller.url, "--base", "counter"),
        *("--token-file", str(tmp_path / "key")),
    )
    assert e2b.call("/v2/sandboxes", as_key=True)[0] == 401  # the admin token is not the key
    status, made = e2b.call("/v2/sandboxes", {"templateID": "base"}, token="e2b_key-of-this-test", as_key=True)
    assert status == 201 and made["envdAccessToken"]
    [view] = controller.call("/sandboxes?status=ready")[1]
    assert (view["id"], view["environment"], view["labels"]) == (made["sandboxID"], "counter", {"e2b": "base"})
    assert e2b.stop() == 0
    assert controller.call("/sandboxes?status=ready")[1] == []
    assert controller.stop() == 0


def test_on_a_terminal_a_controller_says_for_people_where_everything_is(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    home = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), "GYMBOX_TOKEN": ""}
    process = subprocess.Popen(
        [
            *COMMAND,
            "controller",
            "provider=process",
            "--port",
            "0",
            "--proxy-port",
            "0",
            "--state",
            str(tmp_path / "s"),
        ],
        stderr=end,
        env=home,
        cwd=ROOT,
    )
    os.close(end)
    said = ""
    try:
        while "held by process" not in said:
            said += os.read(terminal, 4096).decode()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        os.close(terminal)

    assert "{" not in said and "/docs; the token for it is in " in said
    assert str(tmp_path / "config" / "gymbox" / "token") in said
    assert "sandboxes are reached through http://127.0.0.1:" in said


def test_several_models_are_served_by_name_and_a_mistyped_one_is_told_the_nearest(
    start: Start, tmp_path: Path
) -> None:
    replies = {name: f"[[{{type: message, content: 'I am {name}'}}]]" for name in ("small", "big")}
    chosen = [
        text for name, told in replies.items() for text in (f"models.{name}=scripted", f"models.{name}.replies={told}")
    ]
    server = start("model", *chosen, "--port", "0", "--capture-dir", str(tmp_path / "calls"))
    status, answer = server.call("/v1/responses", {"model": "big", "input": "who are you?"})
    assert (status, answer["output"][0]["content"][0]["text"]) == (200, "I am big")
    assert [each["id"] for each in server.call("/v1/models")[1]["data"]] == ["small", "big"]
    assert server.call("/v1/models/small", as_key=True)[1]["id"] == "small"
    status, answer = server.call("/v1/chat/completions", {"model": "smal", "messages": []})
    assert status == 404 and "did you mean 'small'?" in answer["error"]["message"]
    status, answer = server.call("/v1/messages", {"messages": []})
    assert (status, answer["type"], answer["error"]["type"]) == (404, "error", "not_found_error")
    assert server.stop() == 0
    assert list((tmp_path / "calls").glob("*.jsonl"))


def test_a_proxy_and_a_controller_in_processes_of_their_own_find_each_other(start: Start, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("gbx_key_upstream-of-this-test\n")
    model = start("model", "model=scripted", "--port", "0", "--token-file", str(secret))
    proxy = start(
        *("proxy", "--port", "0", "--admin-socket", str(tmp_path / "admin.sock"), "--model", f"m={model.url}"),
        *("--upstream-token-file", str(secret), "--allowed-host", "gateway", "proxy.upstream_body_limit=1000"),
    )
    assert proxy.call("/readyz")[0] == 503
    shared = tmp_path / "shared"
    for name in ("agent", "upstream"):
        (shared / name).mkdir(parents=True)
    (shared / "upstream" / "token").write_text("kept")
    controller = start(
        *("controller", "provider=process", "--port", "0", "--state", str(tmp_path / "s"), "--share-tokens"),
        *(str(shared), "--proxy-socket", str(tmp_path / "admin.sock"), "--proxy-url", proxy.url),
    )
    status, view = controller.call("/sandboxes", {"id": "one", "environment": "counter"})
    assert (status, view["url"]) == (201, f"{proxy.url}/sandboxes/one")
    assert proxy.call("/readyz")[0] == 200
    tools = view["tokens"]["tools"]
    assert proxy.call("/sandboxes/one/tools", token=tools)[0] == 200
    assert proxy.call("/sandboxes/one/verify", {}, token=tools)[0] == 403
    assert proxy.call("/models/m/v1/models", token=controller.token)[0] == 200
    assert proxy.call("/models/m/v1/responses", {"input": "x" * 1000}, token=controller.token)[0] == 413
    assert proxy.call("/healthz", host="evil.example")[0] == 200
    assert proxy.call("/models/m/v1/models", token=controller.token, host="evil.example")[0] == 403
    assert proxy.call("/models/m/v1/models", token=controller.token, host="gateway:80")[0] == 200
    assert model.call("/v1/models", token=controller.token)[0] == 401
    assert (shared / "agent" / "token").read_text().strip() == controller.token
    assert (shared / "agent" / "token").stat().st_mode & 0o777 == 0o640
    assert (shared / "upstream" / "token").read_text() == "kept"
    request = urllib.request.Request(f"{controller.url}/sandboxes/one", method="DELETE")
    request.add_header("Authorization", f"Bearer {controller.token}")
    urllib.request.urlopen(request, timeout=60).close()
    assert [each.stop() for each in (controller, proxy, model)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["controller", "--proxy-url", "http://x"], "belong together"),
        (["controller", "--share-tokens", "/nowhere"], "cannot share tokens in /nowhere"),
        (["controller", "provider=dockr"], "did you mean 'docker'?"),
        (["proxy", "--admin-socket", "/nowhere/x.sock"], "cannot listen on"),
        (["proxy", "--admin-socket", "x.sock", "--model", "m"], "write NAME=URL"),
        (["proxy", "--admin-socket", "x.sock", "--model", "m=file:///etc/passwd"], "URL scheme"),
        (["proxy", "--admin-socket", "x.sock", "proxy.idle_timout=1"], "did you mean 'idle_timeout'?"),
        (["proxy", "--admin-socket", "x.sock", "proxy.port=1"], "port"),
        (["proxy", "--admin-socket", "x.sock", "model=local"], "write proxy.NAME=VALUE"),
        (["controller", "--proxy-socket", "x", "--proxy-url", "http://x", "proxy.drain=1"], "--proxy-socket starts"),
        (["model", "--token-file", "/nowhere"], "cannot read the token"),
        (["e2b", "--token-file", "/dev/null"], "the key is empty"),
        (["e2b", "--controller", "127.0.0.1:1"], "is it http://127.0.0.1:1?"),
        (["e2b", "--host", "0.0.0.0"], "--allowed-host"),
        (["model", "model=scripted", "--host", "0.0.0.0"], "--allowed-host"),
        (["model", "model=scripted", "--log-format", "xml"], "json or console"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_starts(arguments: list[str], said: str, tmp_path: Path) -> None:
    home = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run([*COMMAND, *arguments], env=home, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_served_model_records_its_calls_under_the_rollout_that_the_path_names(start: Start, tmp_path: Path) -> None:
    replies = 'model.replies=[[{content: "the token is TOKEN"}]]'
    server = start("model", "model=scripted", replies, "--port", "0", "--capture-dir", str(tmp_path / "calls"))
    status, answer = server.call("/ng-rollout/r-9/training-token-capture/v1/responses", {"input": server.token})
    assert status == 200 and answer["output"][0]["content"][0]["text"] == "the token is TOKEN"
    assert server.call("/rollouts/r-9/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})[0] == 200
    assert server.stop() == 0
    [file] = (tmp_path / "calls").iterdir()
    assert server.token not in file.read_text()
    calls = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [(call["rollout"], call["call"], call["dialect"]) for call in calls] == [
        ("r-9", 0, "responses"),
        ("r-9", 1, "chat"),
    ]
