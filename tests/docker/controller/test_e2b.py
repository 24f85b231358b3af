"""E2B's own SDK, with containers behind the servers that a user starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docker.controller.conftest import TOKEN
from tests.own_venv import interpreter_with, ran

CHECKS = Path(__file__).parents[2] / "integration" / "e2b" / "sdk_containers.py"
SERVER = """
from gymbox_sandbox import ResourcesServer


class Base(ResourcesServer):
    pass
"""
LIMITS = "limits: {workspace_mb: 32, memory_mb: 512}\n"
BUSYBOX = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends busybox >/dev/null \\
 && for name in stat find readlink mv mkdir rm; do ln -s "$(command -v busybox)" /usr/local/bin/$name; done
"""


def write_environments(folder: Path) -> None:
    for name, files in (
        ("base", {}),
        ("busybox", {"Dockerfile": BUSYBOX, "environment.yaml": "image: {dockerfile: Dockerfile}\n"}),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "server.py").write_text(SERVER)
        (folder / name / "environment.yaml").write_text(f"description: A workspace.\n{LIMITS}")
        for file, content in files.items():
            with (folder / name / file).open("a") as opened:
                opened.write(content)


async def test_the_sdk_uses_containers_which_end_with_the_server(
    controller: Callable[..., Any], tmp_path: Path
) -> None:
    write_environments(tmp_path / "environments")
    (tmp_path / "key").write_text("e2b_key-of-docker-tests-only\n")
    async with controller("--environments", str(tmp_path / "environments")) as (_, client):
        for name in ("base", "busybox"):  # the SDK waits for a minute, which an image may take longer
            await client.environment(name, prepare=True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from gymbox.cli import main; main()", "serve", "e2b", "--port", "0"),
            *("--controller", client.url, "--token-file", str(tmp_path / "key"), "--log-format", "console"),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "GYMBOX_TOKEN": TOKEN},
        )
        assert process.stderr is not None
        try:
            line = ""
            while "answering on http" not in line:
                line = (await process.stderr.readline()).decode()
                assert line, "it did not start"
            url = line.split("answering on ")[1].split()[0]
            variables = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_key-of-docker-tests-only"}
            options = ("-q", "--noconftest", "-p", "no:cacheprovider", "-o", "addopts=")
            said = await ran(
                interpreter_with("e2b"), "-m", "pytest", *options, str(CHECKS), measured=False, **variables
            )
            assert " passed" in said and "skipped" not in said
            assert len(await client.sandboxes(status="ready")) == 1
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            assert await client.sandboxes(status="ready") == []
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
