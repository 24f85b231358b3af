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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import gymbox_sandbox.chat_history
import gymbox_sandbox.responses

import gymbox.row_check
from gymbox.errors import ConfigError
from gymbox.row_check import Fault, Faults, Scan, scan

PART = 32 * 1024 * 1024
"""Bytes of a file from which it is worth another process, and from which its index is remembered."""
MOST_REMEMBERED = 64
"""Indexes in a cache; the oldest go."""
_RACY_NS = 2_000_000_000
"""Nanoseconds for which a file that was just written may change again without a change of its times."""
Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Index:
    """All rows of a file: where each begins, in bytes; what is wrong; and the digest of the whole."""

    sha256: str
    offsets: array[int]
    faults: Faults


def stamp_of(file: BinaryIO) -> Stamp:
    """What changes when the file does: device, inode, size, and the times (ns) of its last change."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def index_of(path: Path, file: BinaryIO, hidden_fields: Sequence[str], cache: Path | None = None) -> Index:
    """The index of a file, from `cache` where that has it.

    Raises:
        ConfigError: it was changed while it was read, or its check was cut short.
    """
    stamp = stamp_of(file)
    large = stamp[2] >= PART
    entry = cache / f"{_key(stamp, hidden_fields)}.index" if cache is not None and large else None
    if entry is not None and (remembered := _read(entry)) is not None:
        return remembered
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_sha256, path)
        scans = _in_parts(path, file, hidden_fields, stamp[2]) if large else [scan(path, file, hidden_fields, 0, None)]
        index = _joined(path, digest.result(), scans)
    if stamp_of(file) != stamp:
        raise ConfigError(f"{path} was changed while it was checked; start again with the file at rest")
    if entry is not None and not index.faults.count and time.time_ns() - max(stamp[3:]) > _RACY_NS:
        _write(entry, index)
    return index


def _in_parts(path: Path, file: BinaryIO, hidden_fields: Sequence[str], size: int) -> list[Scan]:
    """The scans of a file's parts, in order; each but the first is made by a process of its own."""
    # of the processors only those that this process may use, where the system tells
    count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    borders = [0, *(_line_after(file, size * part // count) for part in range(1, count)), size]
    program = f"import sys; from {gymbox.row_check.__name__} import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(path)]
    others = [
        subprocess.Popen([*command, str(begin), str(end), json.dumps(list(hidden_fields))], stdout=subprocess.PIPE)
        for begin, end in zip(borders[1:-1], borders[2:], strict=True)
    ]
    try:
        scans = [scan(path, file, hidden_fields, 0, borders[1])]
        for other in others:
            output, _ = other.communicate()
            if other.returncode:
                raise ConfigError(f"the check of {path} was cut short: a process of it ended with {other.returncode}")
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
    for part in scans:
        offsets += part.offsets
        ids += part.ids
        id_lines.extend(line + lines for line in part.id_lines)
        faults.join(part.faults, lines)
        lines += part.lines
    faults.add(_twice(path, ids, id_lines))
    return Index(sha256, offsets, faults)


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


def _key(stamp: Stamp, hidden_fields: Sequence[str]) -> str:
    """Name of what is remembered of a file; another check gives another name."""
    key = hashlib.sha256(json.dumps([stamp, *hidden_fields]).encode())
    for module in (gymbox.row_check, gymbox_sandbox.responses, gymbox_sandbox.chat_history):
        key.update(Path(str(module.__file__)).read_bytes())
    return key.hexdigest()[:40]


def _read(entry: Path) -> Index | None:
    """None: it is not there, or damaged."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    sha256, _, rest = content.partition(b"\n")
    check, _, packed = rest.partition(b"\n")
    if len(packed) % 8 or check.decode(errors="replace") != hashlib.sha256(sha256 + packed).hexdigest():
        return None
    return Index(sha256.decode(), array("Q", packed), Faults())


def _write(entry: Path, index: Index) -> None:
    """Remember an index; on a disk that does not allow it, nothing is."""
    sha256, packed = index.sha256.encode(), index.offsets.tobytes()
    check = hashlib.sha256(sha256 + packed).hexdigest().encode()
    new = entry.with_name(f"{entry.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_bytes(b"\n".join((sha256, check, packed)))
        new.replace(entry)
        for old in sorted(entry.parent.glob("*.index"), key=lambda path: -path.stat().st_mtime)[MOST_REMEMBERED:]:
            old.unlink(missing_ok=True)
