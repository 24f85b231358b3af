"""Datasets: how fast a million rows are checked, split and searched for duplicates, and in how much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Figure, finish, within

ROOT = Path(__file__).parents[1]
GYMBOX = str(ROOT / ".venv/bin/gymbox")
ROWS = 1_000_000
COMMAND = (
    "import resource, subprocess, sys, time\n"
    "began = time.perf_counter()\n"
    "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    "print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
)


def a_file(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            content = (
                f"Question {number}: a farmer has {number % 97} hens and buys {number % 31} more. How many are there?"
            )
            row = {
                "id": f"task-{number}",
                "responses_create_params": {
                    "input": [
                        {"role": "system", "content": "Think, then answer with a number."},
                        {"role": "user", "content": content},
                    ]
                },
                "verifier_metadata": {"answer": number % 97 + number % 31},
            }
            file.write(json.dumps(row) + "\n")
    return path


def spent(*arguments: str) -> tuple[float, float]:
    """Seconds of one command, and the most memory (MiB) of any of its processes."""
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, GYMBOX, "dataset", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
        path = a_file(Path(name))
        began = time.perf_counter()
        with path.open("rb") as file:
            for line in file:
                json.loads(line)
        plain = ROWS / (time.perf_counter() - began)
        seconds, memory = spent("validate", str(path))
        rate = ROWS / seconds
        figures = [
            Figure("gymbox dataset validate", rate, "rows/s", plain, "json.loads", ">= 50000 rows/s", rate >= 50_000),
            within(300, "its memory, of its largest process", memory, "MiB"),
        ]
        for command in (("split", str(path), "-o", f"{name}/splits"), ("stats", str(path), "--json")):
            seconds, memory = spent(*command)
            about = f"gymbox dataset {command[0]} ({memory:.0f} MiB)"
            figures.append(Figure(about, ROWS / seconds, "rows/s", plain, "json.loads", "", True))
    finish("datasets", figures)


if __name__ == "__main__":
    main()
