"""The file that Weights & Biases' client writes offline: a LevelDB log of protocol buffers, whose messages it ships.

After a header of seven bytes come blocks of 32 KiB. A chunk has a checksum (4 bytes), a length (2), a kind (1: whole;
2, 3, 4: the first, middle and last part of a record) and its bytes; the last six bytes of a block hold none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK, CHUNK = 7, 32 * 1024, 7


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2 as messages

    data, at, parts = path.read_bytes(), HEADER, b""
    while at + CHUNK <= len(data):
        if BLOCK - at % BLOCK < CHUNK:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + CHUNK : at + CHUNK + length]
        at += CHUNK + length
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class OfflineRun:
    """What a file tells."""

    def __init__(self, path: Path) -> None:
        self.id, self.name, self.project, self.tags = "", "", "", set[str]()
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.artifacts: dict[str, list[str]] = {}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                self.id, self.name, self.project, self.tags = run.run_id, run.display_name, run.project, {*run.tags}
                self._configure(run.config)
            elif kind == "config":
                self._configure(record.config)
            elif kind == "summary":
                for item in record.summary.update:
                    self.summary["/".join([item.key, *item.nested_key]).strip("/")] = json.loads(item.value_json)
            elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
                artifact = record.request.log_artifact.artifact
                self.artifacts[artifact.name] = [entry.path for entry in artifact.manifest.contents]
            elif kind == "artifact":
                self.artifacts[record.artifact.name] = [entry.path for entry in record.artifact.manifest.contents]

    def _configure(self, config: Any) -> None:
        for item in config.update:
            self.config[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
