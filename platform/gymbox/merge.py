"""Merge: the shards of one run, put together into one folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError
from gymbox.models.cassettes import CALLS
from gymbox.results import FAILURES, MANIFEST, METRICS, ROLLOUTS, RunManifest, Score, metrics_of, written


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a run, as its folder has it."""

    path: Path
    manifest: RunManifest
    part: int
    parts: int

    @classmethod
    def of(cls, path: Path) -> Shard:
        """
        Raises:
            ConfigError: there is no run, or it is no shard of one.
        """
        try:
            manifest = RunManifest.model_validate_json((path / MANIFEST).read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} holds no run: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path / MANIFEST} is damaged or of another version of gymbox: {error}") from error
        shard = manifest.inputs.get("runner", {}).get("shard")
        if shard is None:
            raise ConfigError(f"{path} is no shard: its run had no runner.shard=PART/PARTS")
        part, parts = map(int, str(shard).split("/"))
        return cls(path, manifest, part, parts)

    def shared_inputs(self) -> dict[str, Any]:
        """What all shards of a run have in common."""
        inputs = json.loads(json.dumps(self.manifest.inputs))
        del inputs["runner"]["shard"]
        return dict(inputs)

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Every whole line of its rollouts.

        Raises:
            ConfigError: a line is damaged.
        """
        path = self.path / ROLLOUTS
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    raise ConfigError(f"{path} ends in the middle of a line: go on with that run, then merge")
                try:
                    yield line, json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{path}:{number} is damaged: {error}") from error


def merged(paths: Sequence[Path], output: Path, *, partial: bool = False) -> RunManifest:
    """Write one run made of all these shards to `output`, whole or not at all; what is recorded of their model calls
    comes along.

    Args:
        partial: also where shards are missing, or have not finished.

    Raises:
        ConfigError: they are not the shards of one run (what differs is named), some are missing, one has not
            finished, or `output` is there already.
    """
    shards = sorted((Shard.of(path) for path in paths), key=lambda shard: shard.part)
    _check(shards, partial=partial)
    if output.exists():
        raise ConfigError(f"{output} is there already; merge into a new folder")
    new = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    try:
        new.mkdir(parents=True)
        manifest = _write(shards, new)
        new.rename(output)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return manifest


def _check(shards: Sequence[Shard], *, partial: bool) -> None:
    first, *others = shards
    for other in others:
        if other.parts != first.parts:
            raise ConfigError(f"{first.path} is one of {first.parts} shards, {other.path} one of {other.parts}")
        if (mine := first.shared_inputs()) != (theirs := other.shared_inputs()):
            differ = ", ".join(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
            raise ConfigError(f"{other.path} is of another run than {first.path}: {differ} differ")
    numbers = [shard.part for shard in shards]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ConfigError(f"shard {twice[0]}/{first.parts} is given twice")
    if partial:
        return
    if missing := sorted({*range(1, first.parts + 1)} - {*numbers}):
        listed = ", ".join(f"{number}/{first.parts}" for number in missing)
        raise ConfigError(f"shards are missing: {listed}; give them, or merge what is there with --partial")
    for shard in shards:
        if shard.manifest.status != "finished":
            state = shard.manifest.status
            raise ConfigError(f"{shard.path} is {state}; go on with it first, or merge what is there with --partial")


def _write(shards: Sequence[Shard], folder: Path) -> RunManifest:
    total, scores = Score(), dict[str, Score]()
    with (folder / ROLLOUTS).open("wb") as rows:
        for shard in shards:
            for line, record in shard.lines():
                rows.write(line)
                total.add(record)
                scores.setdefault(record["environment"], Score()).add(record)
        rows.flush()
        os.fsync(rows.fileno())
    if any((shard.path / FAILURES).exists() for shard in shards):
        with (folder / FAILURES).open("wb") as failed:
            for shard in shards:
                if (shard.path / FAILURES).exists():
                    with (shard.path / FAILURES).open("rb") as file:
                        shutil.copyfileobj(file, failed)
    for shard in shards:
        for cassette in sorted((shard.path / CALLS).glob("*.jsonl")):
            (folder / CALLS).mkdir(exist_ok=True)
            shutil.copyfile(cassette, folder / CALLS / f"{shard.manifest.run}-{cassette.name}")
    whole = len(shards) == shards[0].parts and all(shard.manifest.status == "finished" for shard in shards)
    first = shards[0].manifest
    manifest = first.model_copy(
        update={
            "run": secrets.token_hex(4),
            "status": "finished" if whole else "interrupted",
            "inputs": {**first.inputs, "runner": {**first.inputs["runner"], "shard": None}},
            "planned": sum(shard.manifest.planned for shard in shards),
            "done": total.rollouts,
            "scored": total.scored,
            "started_at": min(shard.manifest.started_at for shard in shards),
            "ended_at": max(shard.manifest.ended_at or datetime.now(UTC) for shard in shards),
            "shards": [shard.manifest.run for shard in shards],
        }
    )
    written(folder / METRICS, metrics_of(total, scores))
    written(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest
