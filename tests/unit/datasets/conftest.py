from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = Callable[..., Path]


def task(content: str, **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": content}]}, **fields}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Writes a JSONL file of the given rows, or lines of bytes."""

    def write(*given: dict[str, Any] | bytes, name: str = "rows.jsonl") -> Path:
        lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in given]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write
