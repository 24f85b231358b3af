"""Model servers under test: each alone on one core, before the same back end; peers in venvs of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym_peer import MODEL, MODEL_CONFIG, CannotBeHad, Launched, to_model

HERE = Path(__file__).parent
LITELLM_VENV = HERE / ".venv-litellm"
START_DEADLINE = 120.0


@dataclass
class ModelServer:
    """One server process. Use as a context manager.

    Raises:
        CannotBeHad: it does not start; the text says why.
    """

    name: str
    command: list[str]
    port: int
    folder: Path
    core: int
    token: str = "none"
    variables: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ModelServer:
        log = self.folder / f"{self.name.replace(' ', '-')}.log"
        # with byte code as it is written for users, and without what a shell here may have set
        variables = {**os.environ, **self.variables, "PYTHONDONTWRITEBYTECODE": ""}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
            )
        deadline = time.monotonic() + START_DEADLINE
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise CannotBeHad(f"{self.name} did not start: …{log.read_text(errors='replace')[-500:]}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process that serves."""
        assert self._process is not None
        return self._process.pid

    def cpu_seconds(self) -> float:
        """CPU-seconds that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory(self) -> float:
        """GiB that it has held at most."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak) / 1024**2


def gymbox(dialect: str, backend: str, port: int, folder: Path, core: int, *overrides: str) -> ModelServer:
    """`gymbox serve model` before a back end that speaks `dialect` (`openai` or `chat`)."""
    token = secrets.token_hex(16)
    written = folder / f"token-{port}"
    written.write_text(token)
    command = [str(HERE.parent / ".venv/bin/gymbox"), "serve", "model", f"model={dialect}", "model.name=stub"]
    command += [f"model.base_url={backend}", *overrides, "--port", str(port), "--token-file", str(written)]
    return ModelServer(f"gymbox {dialect} {port}", command, port, folder, core, token)


class NemoGymModel(ModelServer):
    """NeMo Gym's `openai_model` server as its own launcher starts it, unmodified; only it is on the core, and not what
    its launcher and Ray do beside."""

    def __init__(self, backend: str, port: int, folder: Path, core: int) -> None:
        super().__init__("NeMo Gym", [], port, folder / "nemo-gym", core)
        at = "policy_model.responses_api_models.openai_model"
        overrides = [*to_model(backend), f"+{at}.host=127.0.0.1", f"+{at}.port={port}"]
        self._launched = Launched(self.folder, (MODEL,), (MODEL_CONFIG,), overrides)
        self._pid = 0

    def __enter__(self) -> ModelServer:
        self._launched.__enter__()
        try:
            self._pid = self._launched.pid_at(self.port)
            for thread in Path(f"/proc/{self._pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {self.core})
            if not _answers(self.port):
                raise CannotBeHad("its model server does not answer at the port that it was given")
        except BaseException:
            self._launched.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._launched.stop()

    @property
    def pid(self) -> int:
        return self._pid


def litellm(backend: str, port: int, folder: Path, core: int) -> ModelServer:
    """LiteLLM's proxy with one worker and one deployment, without a database."""
    _install_litellm()
    config = folder / "litellm.yaml"
    deployment = f'{{model: openai/stub, api_base: "{backend}", api_key: none}}'
    config.write_text(f"model_list:\n  - {{model_name: stub, litellm_params: {deployment}}}\n")
    token = f"sk-{secrets.token_hex(32)}"
    variables = {"LITELLM_MASTER_KEY": token, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    command = [str(LITELLM_VENV / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return ModelServer("LiteLLM proxy", command, port, folder, core, token, variables)


def version(venv: Path, package: str) -> str:
    """The version of a package in a peer's venv."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([venv / "bin/python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _install_litellm() -> None:
    uv = shutil.which("uv") or str(HERE.parent / ".tools" / "bin" / "uv")
    commands = [[uv, "pip", "install", "--quiet", "--python", str(LITELLM_VENV / "bin/python"), "litellm[proxy]"]]
    if not (LITELLM_VENV / "bin/python").exists():
        commands.insert(0, [uv, "venv", "--quiet", "--python", sys.executable, str(LITELLM_VENV)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBeHad(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-300:]}")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it speaks HTTP
    except OSError:
        return False
