"""Runs on disk, and the command that exports them in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.run.conftest import gymbox as gymbox
from tests.unit.evaluation.conftest import run as run

GYMBOX = Path(sys.executable).with_name("gymbox")
Export = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Run `gymbox export` with a home of its own and no settings of a tracker but those given."""

    def ended(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
        return subprocess.run(
            [str(GYMBOX), "export", *map(str, arguments)],
            cwd=tmp_path,
            env={**kept, "HOME": str(tmp_path), "MLFLOW_DISABLE_TELEMETRY": "true", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return ended


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that takes no key."""

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b'{"errors": [{"message": "invalid api key"}]}'
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
