"""Split: rows dealt out to splits by what they say, so that the same rows and seed give the same splits.

Rows that are the same, or that have the same value of a field, go to the same split. The order of the rows in the file
plays no part, and within a split they keep it.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gymbox.datasets.files import Written, new_folder
from gymbox.datasets.sources import Source, rows_of
from gymbox.datasets.tasks import refuse
from gymbox.datasets.texts import normalised_digest
from gymbox.errors import ConfigError, nearest
from gymbox.faults import Fault, Faults


@dataclass(frozen=True, slots=True)
class Splitting:
    """How rows are dealt out."""

    shares: Mapping[str, float]
    """Of each split by its name; they add up to 1."""
    seed: int = 0
    by: str | None = None
    """Rows with the same value of this field stay together; without it, rows that are the same, normalised."""
    stratify: str | None = None
    """Each split gets its share of the rows of each value of this field."""

    def __post_init__(self) -> None:
        if not math.isclose(sum(self.shares.values()), 1) or not all(share > 0 for share in self.shares.values()):
            said = ", ".join(f"{name}={share:g}" for name, share in self.shares.items())
            raise ConfigError(f"the shares of the splits must be above 0 and add up to 1; they are {said}")
        if wrong := [name for name in self.shares if not name.replace("-", "_").isidentifier()]:
            raise ConfigError(f"{wrong[0]!r} is no name for a split; use letters, digits, '_' and '-'")


def write_splits(source: Source, splitting: Splitting, folder: Path) -> list[Written]:
    """Deal the rows out to `folder`/NAME.jsonl, as the bytes they are where the source is JSONL.

    A split gets whole groups until it has its share of rows, so it is off by less than one group; one that gets none
    is refused. Memory: some 100 bytes a row.

    Raises:
        ConfigError: a row cannot be read or lacks a field, or a split would be empty; nothing is written then.
    """
    dealt = _dealt(source, splitting)
    names, counts = list(splitting.shares), [0] * len(splitting.shares)
    for at in dealt:
        counts[at] += 1
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise ConfigError(f"{source.name}: {len(dealt)} rows give split {empty[0]!r} none; give it a larger share")
    with new_folder(folder) as beside:
        digests = [hashlib.sha256() for _ in names]
        files = [(beside / f"{name}.jsonl").open("xb") for name in names]
        try:
            again = Faults()
            for row, at in zip(rows_of(source, again), dealt, strict=True):
                line = row.as_line(row.fields)
                files[at].write(line)
                digests[at].update(line)
        except ValueError as error:
            raise ConfigError(f"{source.name} was changed while it was read; start again at rest") from error
        finally:
            for file in files:
                file.close()
    return [
        Written(folder / f"{name}.jsonl", count, digest.hexdigest())
        for name, count, digest in zip(names, counts, digests, strict=True)
    ]


def _dealt(source: Source, splitting: Splitting) -> array[int]:
    """For each row the number of its split."""
    faults = Faults()
    groups: dict[bytes, list[int]] = {}
    strata: dict[str, list[bytes]] = defaultdict(list)
    rows = 0
    for row in rows_of(source, faults):
        for name in (splitting.by, splitting.stratify):
            if name is not None and name not in row.fields:
                faults.add([Fault(Path(source.name), row.line, name, "missing", nearest(name, list(row.fields)))])
        about = normalised_digest({"by": row.fields.get(splitting.by)} if splitting.by else row.fields)
        if about not in groups:
            groups[about] = []
            value = row.fields.get(splitting.stratify) if splitting.stratify else None
            strata[json.dumps(value, sort_keys=True)].append(about)
        groups[about].append(rows)
        rows += 1
    refuse(faults)
    dealt = array("I", bytes(4 * rows))
    shares = list(splitting.shares.values())
    for stratum, members in strata.items():
        salt = f"{splitting.seed}\0{stratum}\0".encode()
        members.sort(key=lambda group: hashlib.blake2b(salt + group, digest_size=16).digest())
        total, done, at, until = sum(len(groups[group]) for group in members), 0, 0, shares[0]
        for group in members:
            while at + 1 < len(shares) and done >= round(total * until, 6):
                at += 1
                until += shares[at]
            for position in groups[group]:
                dealt[position] = at
            done += len(groups[group])
    return dealt
