"""Dataset index: where the rows of a file begin and what is wrong in them, found once and remembered.

A large file is checked by several processes at once, each a part of it. A file that was found right is not read again
while it is the same by inode, size and times, and while the check is the same, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import secrets
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, Protocol

import gymbox_sandbox.chat_history
import gymbox_sandbox.responses

import gymbox.row_check
from gymbox.errors import ConfigError
from gymbox.faults import Fault, Faults
from gymbox.row_check import Mentions, RowPrompt, Scan, scan

PART = 32 * 1024 * 1024
"""Bytes of a file from which it is worth another process, and from which its index is remembered."""
MOST_REMEMBERED = 64
"""Indexes in a cache; the oldest go."""
_RACY_NS = 2_000_000_000
"""Nanoseconds for which a file that was just written may change again without a change of its times."""
Stamp = tuple[int, int, int, int, int]


class KeyedPrompt(RowPrompt, Protocol):
    """A prompt that can go to another process."""

    @property
    def key(self) -> str:
        """Another where rows would be filled in, or found wrong, in another way."""


@dataclass(frozen=True, slots=True)
class Index:
    """All rows of a file: where each begins, in bytes; what is wrong; the digest of the whole; and which agents the
    rows name."""

    sha256: str
    offsets: array[int]
    faults: Faults
    agents: Mapping[str, Mentions] = field(default_factory=dict)


def stamp_of(file: BinaryIO) -> Stamp:
    """What changes when the file does: device, inode, size, and the times (ns) of its last change."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def index_of(
    path: Path,
    file: BinaryIO,
    hidden_fields: Sequence[str],
    cache: Path | None = None,
    prompt: KeyedPrompt | None = None,
) -> Index:
    """The index of a file, from `cache` where that has it.

    Raises:
        ConfigError: it was changed while it was read, or its check was cut short.
    """
    stamp = stamp_of(file)
    large = stamp[2] >= PART
    entry = cache / f"{_key(stamp, hidden_fields, prompt)}.index" if cache is not None and large else None
    if entry is not None and (remembered := _read(entry)) is not None:
        return remembered
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_sha256, path)
        if large:
            scans = _in_parts(path, file, hidden_fields, prompt, stamp[2])
        else:
            scans = [scan(path, file, hidden_fields, 0, None, prompt)]
        index = _joined(path, digest.result(), scans)
    if stamp_of(file) != stamp:
        raise ConfigError(f"{path} was changed while it was checked; start again with the file at rest")
    if entry is not None and not index.faults.count and time.time_ns() - max(stamp[3:]) > _RACY_NS:
        _write(entry, index)
    return index


def _in_parts(
    path: Path, file: BinaryIO, hidden_fields: Sequence[str], prompt: KeyedPrompt | None, size: int
) -> list[Scan]:
    """The scans of a file's parts, in order; each but the first is made by a process of its own."""
    # of the processors only those that this process may use, where the system tells
    count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    borders = [0, *(_line_after(file, size * part // count) for part in range(1, count)), size]
    program = f"import sys; from {gymbox.row_check.__name__} import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(path)]
    with NamedTemporaryFile() as options:
        options.write(pickle.dumps((list(hidden_fields), prompt)))
        options.flush()
        others = [
            subprocess.Popen([*command, str(begin), str(end), options.name], stdout=subprocess.PIPE)
            for begin, end in zip(borders[1:-1], borders[2:], strict=True)
        ]
        try:
            scans = [scan(path, file, hidden_fields, 0, borders[1], prompt)]
            for other in others:
                output, _ = other.communicate()
                if other.returncode:
                    raise ConfigError(
                        f"the check of {path} was cut short: a process of it ended with {other.returncode}"
                    )
                scans.append(pickle.loads(output))  # noqa: S301  written by our own child
        finally:
            for other in others:
                with other:
                    other.kill()
    return scans


def _line_after(file: BinaryIO, offset: int) -> int:
    """Where the next line begins."""
    file.seek(offset)
    while (chunk := file.readline(1 << 20)) and not chunk.endswith(b"\n"):
        pass
    return file.tell()


def _joined(path: Path, sha256: str, scans: Sequence[Scan]) -> Index:
    offsets, ids, id_lines, faults, lines = array("Q"), array("Q"), array("Q"), Faults(), 0
    agents: dict[str, Mentions] = {}
    for part in scans:
        offsets += part.offsets
        ids += part.ids
        id_lines.extend(line + lines for line in part.id_lines)
        faults.join(part.faults, lines)
        for name, mentions in part.agents.items():
            agents.setdefault(name, Mentions(mentions.line + lines)).rows += mentions.rows
        lines += part.lines
    faults.add(_twice(path, ids, id_lines))
    return Index(sha256, offsets, faults, agents)


def _twice(path: Path, ids: array[int], lines: array[int]) -> list[Fault]:
    """A fault for each row whose id stands in an earlier one already."""
    in_order = sorted(ids)
    doubtful = {one for one, following in pairwise(in_order) if one == following}
    if not doubtful:
        return []
    wanted = {line for id, line in zip(ids, lines, strict=True) if id in doubtful}
    first: dict[str, int] = {}
    faults = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number not in wanted:
                continue
            id = json.loads(line)["id"]
            if (before := first.setdefault(str(id), number)) != number:
                said = f"{id!r:.80} stands in line {before} already"
                faults.append(Fault(path, number, "id", said, "give each row an id of its own, or none", before))
    return faults


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what is remembered


def _key(stamp: Stamp, hidden_fields: Sequence[str], prompt: KeyedPrompt | None) -> str:
    """Name of what is remembered of a file; another check gives another name."""
    key = hashlib.sha256(json.dumps([stamp, hidden_fields, prompt and prompt.key]).encode())
    modules = [gymbox.row_check, gymbox_sandbox.responses, gymbox_sandbox.chat_history]
    for module in modules if prompt is None else [*modules, sys.modules[type(prompt).__module__]]:
        key.update(Path(str(module.__file__)).read_bytes())
    return key.hexdigest()[:40]


def _read(entry: Path) -> Index | None:
    """None: it is not there, or damaged."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    head, _, packed = content.partition(b"\n")
    try:
        told = json.loads(head)
        if len(packed) % 8 or told["check"] != _check(told, packed):
            return None
        agents = {name: Mentions(**mentions) for name, mentions in told["agents"].items()}
        return Index(told["sha256"], array("Q", packed), Faults(), agents)
    except (ValueError, KeyError, TypeError):
        return None


def _write(entry: Path, index: Index) -> None:
    """Remember an index; on a disk that does not allow it, nothing is."""
    packed = index.offsets.tobytes()
    told = {"sha256": index.sha256, "agents": {name: asdict(mentions) for name, mentions in index.agents.items()}}
    told["check"] = _check(told, packed)
    new = entry.with_name(f"{entry.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_bytes(json.dumps(told).encode() + b"\n" + packed)
        new.replace(entry)
        for old in sorted(entry.parent.glob("*.index"), key=lambda path: -path.stat().st_mtime)[MOST_REMEMBERED:]:
            old.unlink(missing_ok=True)


def _check(told: Mapping[str, object], packed: bytes) -> str:
    head = json.dumps([told["sha256"], told["agents"]], sort_keys=True)
    return hashlib.sha256(head.encode() + packed).hexdigest()
