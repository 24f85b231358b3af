"""Rollouts a second, and CPU a rollout: two environments in gymbox beside the same ones of NeMo Gym.

`counter` is beside its session-state example, at concurrency 64, and an environment without state beside its single
tool call, at concurrency 256. Both sides get the same stub model over HTTP, which answers at once, and the same rows.
Rounds are interleaved. Time and CPU run from the stub's first call to its last, so that start-up counts for neither;
CPU is the whole machine's, less the stub's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from nemo_gym_peer import CannotBeHad, NemoGym
from report import Figure, at_least, at_most, finish, median, within

ROOT = Path(__file__).parents[1]
CONCURRENCY, STATELESS_CONCURRENCY = 64, 256
ROUNDS = 3
ROWS, REPEATS = 5, 128
"""640 rollouts a round where a sandbox serves many; NeMo Gym gets a third of that, at its speed."""
STATELESS_REPEATS = 1024
"""Of the environment without state; NeMo Gym gets an eighth of that."""
PORT = 18_741
STATELESS_SERVER = '''
"""Weather: NeMo Gym's single tool call, its tool and its verifier as they are there."""
from gymbox_sandbox import ResourcesServer, Response, Task, tool

class Weather(ResourcesServer):
    @tool
    async def get_weather(self, city: str) -> dict[str, str]:
        """Tell the weather in a city."""
        return {"city": city, "weather_description": f"The weather in {city} is cold."}

    async def verify(self, task: Task, response: Response) -> float:
        return 1.0
'''


@dataclass(frozen=True)
class Round:
    """One measured round."""

    rate: float
    """Rollouts a second."""
    cpu_ms: float
    """CPU-milliseconds a rollout, the stub's own not counted."""


def fetch(path: str, *, post: bool = False) -> dict[str, object]:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data=b"" if post else None)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)  # type: ignore[no-any-return]


def measured(rollouts: int) -> Round:
    """The round that has just ended, from the stub's marks."""
    marks = fetch("/marks")
    first, last = marks["first"], marks["last"]
    assert isinstance(first, dict) and isinstance(last, dict)
    spent = (last["machine"] - first["machine"]) - (last["stub"] - first["stub"])
    return Round(rollouts / (last["time"] - first["time"]), 1000 * spent / rollouts)


def counter_with_published_rows(folder: Path) -> Path:
    """Our `counter` with the peer's own rows as its dataset, so that both sides do the same tasks."""
    copy = folder / "counter"
    shutil.copytree(ROOT / "environments" / "counter", copy)
    shutil.copy(ROOT / "tests/data/nemo_gym/example_session_state_mgmt.jsonl", copy / "data" / "example.jsonl")
    return copy


def stateless(folder: Path) -> Path:
    """The peer's environment with a single tool call, with its own rows."""
    made = folder / "single_tool_call"
    (made / "data").mkdir(parents=True)
    (made / "environment.yaml").write_text("description: one tool call\ndataset: data/example.jsonl\nsessions: 64\n")
    (made / "server.py").write_text(STATELESS_SERVER)
    shutil.copy(ROOT / "tests/data/nemo_gym/example_single_tool_call.jsonl", made / "data" / "example.jsonl")
    return made


def gymbox_round(
    environment: Path, folder: Path, *overrides: str, repeats: int = REPEATS, concurrency: int = CONCURRENCY
) -> Round:
    """One `gymbox run` of an environment against the stub.

    Raises:
        RuntimeError: not every rollout scored 1.0.
    """
    fetch("/marks", post=True)
    rollouts = ROWS * repeats
    command = [str(ROOT / ".venv/bin/gymbox"), "run", f"environment={environment}", "model=openai", "model.name=stub"]
    command += [f"model.base_url=http://127.0.0.1:{PORT}/v1", f"runner.repeats={repeats}", f"runner.limit={ROWS}"]
    command += [f"runner.concurrency={concurrency}", f"runner.output={folder}", *overrides]
    variables = {**os.environ, "OPENAI_API_KEY": "none", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    good = sum(json.loads(line)["reward"] == 1.0 for line in (folder / "rollouts.jsonl").open())
    if good != rollouts:
        raise RuntimeError(f"{good} of {rollouts} rollouts scored 1.0")
    return measured(rollouts)


def without_state(folder: Path) -> tuple[list[Figure], list[str]]:
    """An environment without state, many rollouts at once."""
    ours, provider = stateless(folder), "docker" if _docker_answers() else "process"
    peer, shared, notes = [], [], []
    few = STATELESS_REPEATS // 8
    try:
        with NemoGym(f"http://127.0.0.1:{PORT}", folder / "nemo", "example_single_tool_call") as nemo:
            notes.append(f"baseline: nemo-gym {nemo.version}, single tool call, {STATELESS_CONCURRENCY} at once")
            nemo.run(2, 4, 8, "warm-up")
            for number in range(ROUNDS):
                fetch("/marks", post=True)
                good = nemo.run(ROWS, few, STATELESS_CONCURRENCY, f"round-{number}")
                if good != ROWS * few:
                    notes.append(f"NeMo Gym: {good} of {ROWS * few} rollouts scored 1.0")
                peer.append(measured(ROWS * few))
                output, repeats = folder / f"s{number}", STATELESS_REPEATS
                shared.append(
                    gymbox_round(
                        ours, output, f"provider={provider}", repeats=repeats, concurrency=STATELESS_CONCURRENCY
                    )
                )
    except CannotBeHad as error:
        notes.append(f"NeMo Gym could not be had: {error}")
    rate, cpu = median([one.rate for one in shared]), median([one.cpu_ms for one in shared])
    return [
        at_least(
            10,
            f"without state, sessions 64 ({provider})",
            rate,
            "rollouts/s",
            median([one.rate for one in peer]),
            "NeMo Gym",
        ),
        within(6, "its CPU a rollout (2)", cpu, "ms"),
    ], notes


def main() -> None:
    stub = subprocess.Popen([sys.executable, str(Path(__file__).with_name("stub_model.py")), str(PORT)])
    figures: list[Figure] = []
    notes: list[str] = []
    try:
        _wait_for_stub()
        with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
            figures, notes = without_state(Path(name))
        with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
            folder = Path(name)
            ours = counter_with_published_rows(folder)
            peer, shared, alone = [], [], []
            shared_provider = "docker" if _docker_answers() else "process"
            try:
                with NemoGym(f"http://127.0.0.1:{PORT}", folder / "nemo") as nemo:
                    notes.append(f"baseline: nemo-gym {nemo.version}, session-state example")
                    nemo.run(2, 4, 8, "warm-up")
                    for number in range(ROUNDS):
                        fetch("/marks", post=True)
                        good = nemo.run(ROWS, REPEATS // 3, CONCURRENCY, f"round-{number}")
                        if good != ROWS * (REPEATS // 3):
                            notes.append(f"NeMo Gym: {good} of {ROWS * (REPEATS // 3)} rollouts scored 1.0")
                        peer.append(measured(ROWS * (REPEATS // 3)))
                        shared.append(
                            gymbox_round(ours, folder / f"s{number}", f"provider={shared_provider}", "sessions=64")
                        )
                        alone.append(
                            gymbox_round(
                                ours, folder / f"a{number}", "provider=process", "sessions=1", repeats=REPEATS // 3
                            )
                        )
            except CannotBeHad as error:
                notes.append(f"NeMo Gym could not be had: {error}")
        rate = median([one.rate for one in peer])
        cpu = median([one.cpu_ms for one in peer])
        peer_name = "NeMo Gym"
        figures += [
            at_least(
                5,
                f"counter, sessions 64 ({shared_provider})",
                median([one.rate for one in shared]),
                "rollouts/s",
                rate,
                peer_name,
            ),
            at_most(0.2, "its CPU a rollout", median([one.cpu_ms for one in shared]), "ms", cpu, peer_name),
            at_least(1, "one process a task", median([one.rate for one in alone]), "rollouts/s", rate, peer_name),
            at_most(1, "its CPU a rollout (1)", median([one.cpu_ms for one in alone]), "ms", cpu, peer_name),
        ]
    finally:
        stub.terminate()
        stub.wait()
    finish("rollouts", figures, notes)


def _wait_for_stub() -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            fetch("/marks")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _docker_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    main()
