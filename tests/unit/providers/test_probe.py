"""What is read of an image before anything of it runs."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gymbox.providers.probe import Probe


class Engine:
    """One whose image has one thing, whatever is asked for."""

    def __init__(self, mode: int, content: bytes, link: str = "") -> None:
        self.mode, self.content, self.link = mode, content, link
        self.read = 0

    def _url(self, path: str, id: str) -> str:
        return path.format(id)

    def _raise_for_status(self, answer: Any) -> None:
        pass

    def head(self, url: str, params: dict[str, str]) -> Any:
        stat = {"mode": self.mode, "size": len(self.content), "linkTarget": self.link}
        told = base64.b64encode(json.dumps(stat).encode()).decode()
        return SimpleNamespace(status_code=200, headers={"X-Docker-Container-Path-Stat": told})

    def get_archive(self, id: str, path: str) -> tuple[Iterator[bytes], None]:
        self.read += 1
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            info = tarfile.TarInfo(path)
            info.size = len(self.content)
            tar.addfile(info, io.BytesIO(self.content))
        return iter([file.getvalue()]), None


def test_a_small_file_is_read() -> None:
    assert Probe(Engine(0o644, b"root:x:0:0\n"), "c1").read("/etc/passwd") == b"root:x:0:0\n"


@pytest.mark.parametrize(
    ("mode", "content", "link"),
    [(1 << 31 | 0o755, b"x" * 4096, ""), (0o644, b"x" * ((1 << 20) + 1), ""), (0o777, b"", "/etc/shadow")],
    ids=["a folder, whatever is in it", "a large file", "a link"],
)
def test_what_is_no_small_file_is_not_even_fetched(mode: int, content: bytes, link: str) -> None:
    engine = Engine(mode, content, link)
    assert Probe(engine, "c1").read("/etc/passwd") is None
    assert engine.read == 0
