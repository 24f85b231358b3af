"""Exec: what a command gets, and what its caller gets back."""

from __future__ import annotations

import base64


async def test_a_command_runs_and_its_output_and_exit_code_come_back(host):
    result = await host.exec("echo out; echo err >&2; exit 3")
    assert result["exit_code"] == 3
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
