"""Merge: the shards of one run, put together into one folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from gymbox.artifacts import ARTIFACTS, ArtifactStore
from gymbox.budget import Used
from gymbox.errors import ConfigError
from gymbox.inputs import levelled
from gymbox.models.cassettes import CALLS, JUDGE_CALLS
from gymbox.results import FAILURES, METRICS, ROLLOUTS, written
from gymbox.run_manifest import MANIFEST, RunManifest, manifest_in
from gymbox.scores import Scores


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
        manifest = manifest_in(path)
        if manifest is None:
            raise ConfigError(f"{path} holds no run: it has no {MANIFEST}")
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

    def lines(self, count: Callable[[dict[str, Any]], None]) -> Iterator[bytes]:
        """Every line of its rollouts, its record given to `count` before.

        Raises:
            ConfigError: a line is damaged, or none of a rollout.
        """
        path = self.path / ROLLOUTS
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    raise ConfigError(f"{path} ends in the middle of a line: go on with that run, then merge")
                try:
                    count(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                    raise ConfigError(f"{path}:{number} is damaged: {told}") from error
                yield line


def merged(paths: Sequence[Path], output: Path, *, partial: bool = False) -> RunManifest:
    """Write one run made of all these shards to `output`, whole or not at all; what is recorded of the calls of
    their model and judge comes along, and the artifacts.

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
        mine, theirs = levelled(first.shared_inputs(), other.shared_inputs())
        if mine != theirs:
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
    scores = Scores(shards[0].manifest.inputs)
    with (folder / ROLLOUTS).open("wb") as rows:
        for shard in shards:
            rows.writelines(shard.lines(scores.add))
        rows.flush()
        os.fsync(rows.fileno())
    if any((shard.path / FAILURES).exists() for shard in shards):
        with (folder / FAILURES).open("wb") as failed:
            for shard in shards:
                if (shard.path / FAILURES).exists():
                    with (shard.path / FAILURES).open("rb") as file:
                        shutil.copyfileobj(file, failed)
    for shard in shards:
        for calls in (CALLS, JUDGE_CALLS):
            for cassette in sorted((shard.path / calls).glob("*.jsonl")):
                (folder / calls).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(cassette, folder / calls / f"{shard.manifest.run}-{cassette.name}")
        store = ArtifactStore(folder)
        for path in sorted((shard.path / ARTIFACTS).glob("*/*.tar.gz")):
            store.take(ArtifactStore(shard.path), path.name.removesuffix(".tar.gz"))
    whole = len(shards) == shards[0].parts and all(shard.manifest.status == "finished" for shard in shards)
    first = shards[0].manifest
    manifest = first.model_copy(
        update={
            "run": secrets.token_hex(4),
            "status": "finished" if whole else "interrupted",
            "inputs": {**first.inputs, "runner": {**first.inputs["runner"], "shard": None}},
            "planned": sum(shard.manifest.planned for shard in shards),
            "done": scores.total.rollouts,
            "scored": scores.total.scored,
            "used": reduce(Used.plus, (shard.manifest.used for shard in shards)),
            "stopped_by": None,
            "started_at": min(shard.manifest.started_at for shard in shards),
            "ended_at": max(shard.manifest.ended_at or datetime.now(UTC) for shard in shards),
            "shards": [shard.manifest.run for shard in shards],
        }
    )
    written(folder / METRICS, scores.metrics())
    written(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest
