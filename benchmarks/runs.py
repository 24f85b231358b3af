"""Runs: what the runner costs, how a million rows start, and whether 50 times `kill -9` lose or repeat anything."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from report import Figure, finish, within

ROOT = Path(__file__).parents[1]
GYMBOX = str(ROOT / ".venv/bin/gymbox")
KILLS, TASKS = 50, 2_000
ROWS = 1_000_000
OVERHEAD_ROLLOUTS = 4_000

LOGGING_AGENT = '''
"""An agent that notes each task that it is given."""
import os
from gymbox.agents.tool_loop import ToolLoop

class Noting(ToolLoop):
    async def run(self, task, model, tools):
        response = await super().run(task, model, tools)
        with open(os.environ["NOTES"], "a") as file:  # appended whole, however many processes write
            file.write(f"{task.id}\\n")
        return response
'''


def copied(folder: Path, rows: int) -> Path:
    """`counter` with so many rows."""
    copy = folder / f"counter-{rows}"
    shutil.copytree(ROOT / "environments/counter", copy, ignore=shutil.ignore_patterns("__pycache__"))
    data = copy / "data" / "example.jsonl"
    given = [json.loads(line) for line in data.read_text().splitlines()]
    with data.open("w") as file:
        for number in range(rows):
            file.write(json.dumps({**given[number % len(given)], "id": f"task-{number}"}) + "\n")
    os.utime(data, (time.time() - 60, time.time() - 60))
    return copy


def command(environment: Path, output: Path, *more: str) -> list[str]:
    shared = ["model=scripted", "provider=process", "sessions=64", "runner.concurrency=64"]
    return [GYMBOX, "run", f"environment={environment}", *shared, f"runner.output={output}", *more]


# --- kill -9


def killed_again_and_again(folder: Path) -> list[Figure]:
    """2,000 rollouts, killed at 50 random moments after their start and resumed each time."""
    environment, output, notes = copied(folder, TASKS), folder / "killed", folder / "notes"
    (folder / "noting.py").write_text(LOGGING_AGENT)
    (folder / "conf/agent").mkdir(parents=True)
    (folder / "conf/agent/noting.yaml").write_text("_target_: noting.Noting\n")
    chance = random.Random(7)
    rows, changed, repeated = output / "rollouts.jsonl", 0, 0
    going = command(environment, output, "agent=noting", f"--config-dir={folder / 'conf'}", "runner.resume=true")
    variables = {**os.environ, "NOTES": str(notes), "PYTHONDONTWRITEBYTECODE": ""}
    accepted, kills = b"", 0
    while True:
        before = len(notes.read_text().splitlines()) if notes.exists() else 0
        had = {json.loads(line)["task_id"] for line in accepted.splitlines()}
        process = subprocess.Popen(
            going, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        if kills < KILLS:
            wanted = (TASKS - len(had)) * chance.uniform(0, 2) / (KILLS - kills)
            _until_written(rows, len(had) + wanted, process)
            time.sleep(chance.uniform(0, 0.05))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        _, errors = process.communicate(timeout=300)
        found = rows.read_bytes() if rows.exists() else b""
        whole = found[: found.rfind(b"\n") + 1]
        changed += not whole.startswith(accepted)
        again = notes.read_text().splitlines()[before:] if notes.exists() else []
        repeated += len(had.intersection(again))
        accepted = whole
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"exit code {process.returncode}: {errors.decode()[-2000:]}")
    count = Counter(json.loads(line)["task_id"] for line in accepted.splitlines())
    wrong = sum(count[f"task-{number}"] != 1 for number in range(TASKS))
    return [
        Figure("kills survived", kills, "kills", None, "", f">= {KILLS}", kills >= KILLS),
        within(0, f"tasks of {TASKS} without exactly one row", wrong, "tasks"),
        within(0, "resumes that changed an accepted row", changed, "times"),
        within(0, "finished rollouts that were done again", repeated, "rollouts"),
    ]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _until_written(rows: Path, count: float, process: subprocess.Popen[bytes]) -> None:
    """Return when there are so many lines, or the process has ended, or after two minutes."""
    deadline = time.monotonic() + 120
    while _lines(rows) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


# --- a million rows


def a_million_rows(folder: Path) -> list[Figure]:
    """Checked once, by as many processes as there are cores; then a run starts on what is remembered of them."""
    environment = copied(folder, ROWS)
    time.sleep(3)  # a file that was only just written is not remembered
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    program = (
        "import sys, time, resource; from pathlib import Path\n"
        "from gymbox.environment import Environment; from gymbox.dataset import open_datasets\n"
        "environment, began = Environment.load(Path(sys.argv[1])), time.perf_counter()\n"
        "[dataset] = open_datasets([environment], Path(sys.argv[2]))\n"
        "print(len(dataset) / (time.perf_counter() - began),\n"
        "      max(resource.getrusage(who).ru_maxrss for who in (0, -1)) / 1024)\n"
    )
    cache = folder / "cache" / "gymbox" / "datasets"
    done = subprocess.run(
        [sys.executable, "-c", program, str(environment), str(cache)], capture_output=True, text=True, check=True
    )
    rate, checked = (float(word) for word in done.stdout.split())
    began = time.perf_counter()
    for _ in (environment / "data/example.jsonl").open("rb"):
        json.loads(_)
    plain = ROWS / (time.perf_counter() - began)
    output = folder / "millions"
    began = time.perf_counter()
    process = subprocess.Popen(
        command(environment, output), env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _until_written(output / "rollouts.jsonl", 1, process)
    first = time.perf_counter() - began
    time.sleep(5)
    peak = next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    process.send_signal(signal.SIGINT)
    process.wait(60)
    return [
        Figure("rows checked", rate, "rows/s", plain, "json.loads", ">= 50000 rows/s", rate >= 50_000),
        within(300, "memory of the check", checked, "MiB"),
        within(3, "first rollout of a million rows", first, "s"),
        within(300, "memory of the run", peak, "MiB"),
    ]


# --- overhead


class _Sandbox:
    """A sandbox that is none: what remains is the runner."""

    id = "none"
    tools = None

    async def reset(self, task: dict[str, Any]) -> None: ...

    async def verify(self, task: dict[str, Any], response: Any) -> Any:
        from gymbox_sandbox.tasks import Verdict

        return Verdict(reward=1.0)


class _Controller:
    @asynccontextmanager
    async def sandbox(self, environment: Any, *, id: str | None = None) -> AsyncIterator[Any]:
        yield _Sandbox()


def overhead(folder: Path) -> list[Figure]:
    """CPU of `run()` over rollouts whose agent, model and sandbox do nothing, beside that of the agent alone."""
    from gymbox.agents import Agent
    from gymbox.environment import Environment
    from gymbox.http import HttpClient
    from gymbox.models.scripted import ScriptedModel
    from gymbox.plan import Plan
    from gymbox.players import Player
    from gymbox.results import RunFolder
    from gymbox.runner import run
    from gymbox.runner_settings import RunnerSettings
    from gymbox_sandbox.responses import Response
    from gymbox_sandbox.tasks import Task

    class Instant(Agent):
        async def run(self, task: Task, model: Any, tools: Any) -> Response:
            return Response.model_validate({"output": [{"type": "message", "role": "assistant", "content": "done"}]})

    environment = Environment.load(copied(folder, OVERHEAD_ROLLOUTS))

    async def spent() -> tuple[float, float]:
        settings = RunnerSettings(concurrency=64)
        with Plan([environment], settings) as plan:
            tasks = [Task.model_validate(environment.public(slot.row.fields)) for slot in plan]
            began = time.process_time()
            for task in tasks:
                await Instant().run(task, None, None)
            alone = time.process_time() - began
            inputs = json.loads(json.dumps(plan.inputs()))
            output = RunFolder.open(folder / "overhead", inputs=inputs, settings={}, planned=len(plan), resume=False)
            async with HttpClient() as http:
                began = time.process_time()
                players = {None: Player(Instant(), ScriptedModel())}
                await run(plan, players, _Controller(), http, output)  # type: ignore[arg-type]
                return time.process_time() - began, alone

    ran, alone = asyncio.run(spent())
    each, base = 1000 * (ran - alone) / OVERHEAD_ROLLOUTS, 1000 * alone / OVERHEAD_ROLLOUTS
    return [Figure("the runner's own CPU a rollout", each, "ms", base, "agent alone", "<= 1 ms", each <= 1)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
        folder = Path(name)
        figures = [*overhead(folder), *a_million_rows(folder), *killed_again_and_again(folder)]
    finish("runs", figures)


if __name__ == "__main__":
    main()
