"""NeMo Gym as a peer: installed into a venv of its own, its servers started by its own launcher, unmodified."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
VENV = HERE / ".venv-nemo-gym"
MODEL = "responses_api_models/openai_model"
MODEL_CONFIG = f"{MODEL}/configs/openai_model.yaml"
AGENT = "responses_api_agents/simple_agent"
EXAMPLE = "example_session_state_mgmt"
START_DEADLINE = 240.0
RUN_DEADLINE = 300.0


class CannotBeHad(Exception):
    """NeMo Gym could not be installed or started here; the text says why."""


def install() -> None:
    """Make its venv.

    Raises:
        CannotBeHad: it could not be installed; the text says why.
    """
    uv = shutil.which("uv") or str(HERE.parent / ".tools" / "bin" / "uv")
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(VENV)],
        [uv, "pip", "install", "--quiet", "--python", str(VENV / "bin/python"), "nemo-gym"],
    ):
        if command[1] == "venv" and (VENV / "bin/python").exists():
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBeHad(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-300:]}")


class Launched:
    """Some of its servers, started by its own launcher. Use as a context manager.

    Raises:
        CannotBeHad: (on entering) it could not be installed, or its servers did not start; the text says why.
    """

    def __init__(self, folder: Path, servers: Sequence[str], configs: Sequence[str], overrides: Sequence[str]) -> None:
        self.folder = folder
        self._servers = servers
        self._configs = configs
        self._overrides = overrides
        self._launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            install()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pid_at(self, port: int) -> int:
        """Pid of the process of its that listens on a port of this machine."""
        assert self._launcher is not None
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
        for pid in descendants(self._launcher.pid):
            for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor) in sockets:
                        return pid
        raise CannotBeHad(f"none of its servers listens on port {port}")

    def _packages(self) -> Path:
        return next(VENV.glob("lib/python3*/site-packages"))

    def _environment(self) -> dict[str, str]:
        path = f"{VENV / 'bin'}:{os.environ['PATH']}"
        # Ray refuses socket paths over 107 bytes; by default its folder is long enough for that
        return {**os.environ, "PATH": path, "RAY_TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": ""}

    def _start(self) -> None:
        # its launcher makes a venv a server unless one is there: point each at the one that we made
        for server in self._servers:
            (self.folder / server).mkdir(parents=True, exist_ok=True)
            (self.folder / server / ".venv").symlink_to(VENV.resolve())
        log = self.folder / "servers.log"
        configs = f"+config_paths=[{','.join(self._configs)}]"
        with log.open("wb") as output:
            self._launcher = subprocess.Popen(
                [str(VENV / "bin/gym"), "env", "start", configs, *self._overrides, "+skip_venv_if_present=true"],
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_DEADLINE
        while "servers ready! Polling" not in log.read_text(errors="replace"):
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                raise CannotBeHad(f"its servers did not start: …{log.read_text(errors='replace')[-500:]}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End its launcher and every process in sessions that it opened; it leaves some behind by itself."""
        if self._launcher is None:
            return
        tree = descendants(self._launcher.pid)
        for pid in [self._launcher.pid, *tree]:
            _signal(pid, signal.SIGTERM)
        try:
            self._launcher.wait(15)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        for pid in tree:
            _signal(pid, signal.SIGKILL)
        self._launcher = None


def to_model(url: str) -> list[str]:
    """The settings that point its policy model at an endpoint."""
    return [f"+policy_base_url={url}/v1", "+policy_api_key=none", "+policy_model_name=stub"]


class NemoGym(Launched):
    """One of its example environments against a model endpoint."""

    def __init__(self, model_url: str, folder: Path, example: str = EXAMPLE) -> None:
        self._example = example
        resources = f"resources_servers/{example}"
        configs = [f"{resources}/configs/{example}.yaml", MODEL_CONFIG]
        super().__init__(folder, (resources, MODEL, AGENT), configs, to_model(model_url))

    @property
    def version(self) -> str:
        code = "import importlib.metadata as m; print(m.version('nemo-gym'))"
        done = subprocess.run([VENV / "bin/python", "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def run(self, rows: int, repeats: int, concurrency: int, name: str) -> int:
        """Collect `rows * repeats` rollouts; return how many scored 1.0."""
        source = self._packages() / "resources_servers" / self._example / "data/example.jsonl"
        given = self.folder / f"{name}-in.jsonl"
        given.write_text("\n".join(source.read_text().split("\n")[:rows]) + "\n")
        output = self.folder / f"{name}.jsonl"
        command = [str(VENV / "bin/gym"), "eval", "run", "--no-serve", "--agent", f"{self._example}_simple_agent"]
        command += ["--input", str(given), "--output", str(output), "--concurrency", str(concurrency)]
        command += ["--num-repeats", str(repeats)]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, timeout=RUN_DEADLINE, check=False
        )
        if done.returncode:
            raise CannotBeHad(f"its run failed: {done.stderr.decode(errors='replace')[-500:]}")
        return output.read_text().count('"reward": 1.0') or output.read_text().count('"reward":1.0')


def descendants(root: int) -> list[int]:
    """Pids of every process below `root` right now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
