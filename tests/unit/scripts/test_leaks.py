"""What scripts/leaks.py counts as left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LEAKS = Path(__file__).resolve().parents[3] / "scripts" / "leaks.py"


def processes() -> list[str]:
    done = subprocess.run([sys.executable, LEAKS, "before"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in json.loads(done.stdout)["processes"]]


def test_a_process_of_ours_is_a_leak_while_it_lives_and_none_once_it_only_waits_to_be_reaped() -> None:
    command = [sys.executable, "-c", "input()", "gymbox_sandbox"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert str(process.pid) in processes()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
        assert str(process.pid) not in processes()
