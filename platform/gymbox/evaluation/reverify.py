"""Reverify: what a run has stored scored anew, responses and where it keeps them artifacts, in sandboxes in which no
agent has been and with no model asked but the judge, where the environment has one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gymbox_sandbox.responses import Response
from pydantic import BaseModel, ConfigDict, ValidationError

from gymbox.artifacts import ARTIFACTS, ArtifactStore, KeptArtifacts
from gymbox.environment import Environment
from gymbox.errors import ConfigError, RolloutError, Stage, nearest
from gymbox.evaluation.nemo_import import inputs_of, line_of
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.results import RunFolder
from gymbox.rollout import RolloutController
from gymbox.run_manifest import Status
from gymbox.runner_settings import DEFAULT_AGENT

UNSAFE = "unsafe_"
"""How the name of a folder begins whose rewards may be wrong."""
LONGEST = 80
"""Characters of a rollout's id of which its sandbox has the whole."""
log = logging.getLogger(__name__)


class Changes(BaseModel):
    """What came of it."""

    model_config = ConfigDict(extra="forbid")

    output: Path
    unsafe: bool
    planned: int
    done: int = 0
    """Lines of the output, those of earlier starts with them."""
    verified: int = 0
    """Scored anew in this start."""
    copied: int = 0
    """Taken over as they are in this start: there is no response, or nobody asked for them."""
    without_artifacts: int = 0
    """Of the copied, those that cannot be scored because nothing is kept of what their agents left."""
    environments: dict[str, tuple[str, str]] = {}
    """Digests then and now of the environments that are others by now."""
    changed: list[str] = []
    """Ids of rollouts that have another reward now, or another lack of one."""
    failed: int = 0
    """Scored anew in this start without getting a reward."""


_NO_EFFECT = {
    "environment": "the run has its environments; --environment NAME chooses among them",
    "sessions": "each rollout gets a sandbox of its own",
    **dict.fromkeys(("agent", "agents", "model", "models"), "responses are stored, so no agent and no model is asked"),
}
_RUNNER_FIELDS = ("concurrency", "ready_timeout", "capture", "capture_rate")
"""Those of `runner` that count here, too."""


def refuse_without_effect(overrides: Iterable[str]) -> None:
    """
    Raises:
        ConfigError: one of the settings, as on the command line, would change nothing.
    """
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        group, _, field = name.partition(".")
        if why := _NO_EFFECT.get(group.partition("@")[0]):
            raise ConfigError(f"{name}= has no effect on scoring anew: {why}")
        if group == "runner" and field and field not in _RUNNER_FIELDS:
            known = ", ".join(f"runner.{each}" for each in _RUNNER_FIELDS)
            raise ConfigError(f"{name}= has no effect on scoring anew; of runner it takes {known}")


def chosen(reader: RunReader, names: Collection[str]) -> list[str]:
    """The environments of a run whose rollouts are to be scored: those of these names; without any, all.

    Raises:
        ConfigError: the run has no rollouts of one of them, or is damaged.
    """
    there = {rollout.environment for rollout in reader}
    for name in names:
        if name not in there and there:
            raise ConfigError(f"{reader.path} has no rollouts of {name!r}; {nearest(name, sorted(there))}")
    return sorted(there & set(names) if names else there)


def output_of(output: Path, environments: Collection[Environment], *, force: bool) -> tuple[Path, bool]:
    """Where to write, and whether what is written there is unsafe.

    Raises:
        ConfigError: `verify` of an environment needs more than what is stored, and `force` is off.
    """
    unfit = sorted(each.name for each in environments if each.manifest.reverify == "no")
    if not unfit:
        return output, False
    if not force:
        raise ConfigError(
            f"{', '.join(unfit)} may look at what the agent left in its sandbox, of which a run keeps nothing: its "
            "manifest says neither `reverify: stateless` nor `reverify: artifacts`. --force scores it all the same, "
            f"into a folder {UNSAFE}…, and --environment NAME leaves it out where the run has others"
        )
    name = output.resolve().name
    return (output if name.startswith(UNSAFE) else output.resolve().with_name(f"{UNSAFE}{name}")), True


async def reverified(
    reader: RunReader,
    environments: Mapping[str, Environment],
    controller: RolloutController,
    output: Path,
    *,
    unsafe: bool = False,
    chosen: bool = False,
    only: str | None = None,
    concurrency: int = 8,
    resume: bool = False,
    limit: int | None = None,
    settings: dict[str, Any] | None = None,
    during: Callable[[RunFolder], AbstractAsyncContextManager[None]] = lambda folder: nullcontext(),
    told: Callable[[Rollout, RolloutError | float], None] = lambda rollout, outcome: None,
) -> Changes:
    """Write a run to `output` that has the lines of this one, with new rewards. The old run stays as it is.

    Lines without a response are copied, and where artifacts are scored, those without them. One that cannot be scored
    has a typed error and no reward.

    Args:
        environments: by name, all that the run has, or where they are `chosen` some; lines of others are copied.
        only: a kind of error; lines that did not end so are copied.
        resume: go on in `output` with what is not done there.
        limit: lines to write in this start; a resume goes on with the others.
        during: entered once the output is open, and left before it is closed: what the judge is asked in between may
            be recorded and counted there.

    Raises:
        ConfigError: `output` holds something else, or the run is damaged.
        WriteFailed: a result could not be written.
    """
    planned, there = 0, set(environments)
    for rollout in reader:
        planned += 1
        there.add(rollout.environment)
    before = reader.inputs if reader.manifest else inputs_of(reader)
    run = reader.manifest.run if reader.manifest else reader.name
    then = {name: dict((before.get("environments") or {}).get(name) or {}) for name in there}
    inputs = {
        **_of_agent(before, reader.agent),
        "reverified": {
            **{"run": run, "rollouts": planned, "only": only, "unsafe": unsafe},
            **({"agent": reader.share_of} if reader.share_of is not None else {}),
            **({"environments": sorted(environments)} if chosen else {}),
        },
        "environments": {
            name: then[name] | ({"digest": environments[name].digest} if name in environments else {})
            for name in sorted(there)
        },
    }
    RunFolder.check(output, inputs=inputs, resume=resume)
    folder = RunFolder.open(output, inputs=inputs, settings=settings or {}, planned=planned, resume=resume)
    changes = Changes(output=output, unsafe=unsafe, planned=planned)
    for name, environment in sorted(environments.items()):
        if (old := then[name].get("digest")) not in (None, environment.digest):
            changes.environments[name] = old, environment.digest
            log.warning("%s is another than it was: digest %.12s, was %.12s", name, environment.digest, old)
    stores = ArtifactStore(_artifacts_beside(reader)), ArtifactStore(output)
    work = _Work(folder, environments, controller, only, unsafe, run, changes, told, *stores)
    status: Status = "failed"
    try:
        left = islice((rollout for rollout in reader if rollout.id not in folder.done), limit)
        async with during(folder), asyncio.TaskGroup() as crew:
            for _ in range(min(concurrency, planned - len(folder.done))):
                crew.create_task(work.through(left))
        status = "finished" if len(folder.done) == planned else "interrupted"
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        changes.done = len(folder.done)
        await folder.close(status)
    return changes


def _of_agent(inputs: dict[str, Any], agent: str | None) -> dict[str, Any]:
    """The part of a run's inputs that one of its agents had; None: all of it."""
    if agent is None:
        return inputs
    shared = {name: value for name, value in inputs.items() if name not in ("agent", "model", "agents")}
    if agent == DEFAULT_AGENT:
        return shared | {name: inputs[name] for name in ("agent", "model") if name in inputs}
    return shared | {"agents": {agent: inputs["agents"][agent]}}


def _artifacts_beside(reader: RunReader) -> Path:
    """The folder of the run; its files in NeMo Gym's layout are one below."""
    here = reader.file.parent
    return here if (here / ARTIFACTS).is_dir() else here.parent


@dataclass(frozen=True, slots=True)
class _Work:
    folder: RunFolder
    environments: Mapping[str, Environment]
    controller: RolloutController
    only: str | None
    unsafe: bool
    run: str
    changes: Changes
    told: Callable[[Rollout, RolloutError | float], None]
    old: ArtifactStore
    new: ArtifactStore

    async def through(self, rollouts: Iterator[Rollout]) -> None:
        for rollout in rollouts:
            line = line_of(rollout)
            kept = await self._taken(line)
            environment = self.environments.get(rollout.environment)
            asked_for = environment and line.get("response") and (self.only is None or rollout.error == self.only)
            needs = environment is not None and environment.manifest.reverify == "artifacts"
            if asked_for and (kept is not None or not needs):
                line |= await self._scored(rollout, kept if needs else None)
            else:
                self.changes.copied += 1
                self.changes.without_artifacts += bool(asked_for)
            await self.folder.add(line)

    async def _taken(self, line: dict[str, Any]) -> KeptArtifacts | None:
        """What is kept of the rollout, which the new run has from now on, too."""
        if (told := line.get("kept_artifacts")) is None:
            return None
        try:
            kept = KeptArtifacts.model_validate(told)
        except ValidationError as error:
            raise ConfigError(f"rollout {line['rollout_id']}: kept_artifacts is damaged: {error}") from error
        await asyncio.to_thread(self.new.take, self.old, kept.sha256)
        return kept

    async def _scored(self, rollout: Rollout, kept: KeptArtifacts | None) -> dict[str, Any]:
        """What changes in its line."""
        environment, row = self.environments[rollout.environment], rollout.row
        stage, began = Stage.PROVISION, asyncio.get_running_loop().time()
        found: dict[str, Any] = {"reward": None, "metrics": {}, "reward_components": {}, "error": None}
        name = f"{_short(rollout.id)}.again{self.folder.manifest.starts}-{self.folder.manifest.run}"
        try:
            async with asyncio.timeout(environment.manifest.timeouts.rollout):
                async with self.controller.sandbox(environment, id=name) as sandbox:
                    stage = Stage.RESET
                    await sandbox.reset(environment.public(row))
                    stage = Stage.VERIFY
                    task, response = environment.for_verify(row), Response.model_validate(rollout.line["response"])
                    if kept is None:
                        verdict = await sandbox.verify(task, response)
                    else:
                        async with self.old.opened(kept) as artifacts:
                            verdict = await sandbox.verify(task, response, artifacts=artifacts)
                    found |= verdict.model_dump(include={"reward", "metrics", "reward_components"})
        except Exception as error:  # as in a rollout: what fails is its outcome
            if found["reward"] is None:
                found["error"] = RolloutError.at(stage, error).model_dump(mode="json")
        self.changes.verified += 1
        self.changes.failed += found["error"] is not None
        if found["reward"] != rollout.reward:
            self.changes.changed.append(rollout.id)
            log.info("rollout %s: reward %s, was %s", rollout.id, found["reward"], rollout.reward)
        self.told(rollout, found["reward"] if found["error"] is None else RolloutError.model_validate(found["error"]))
        seconds = asyncio.get_running_loop().time() - began
        before = {name: rollout.line.get(name) for name in ("reward", "metrics", "reward_components", "error")}
        of_it = {
            **{"run": self.run, "sandbox": name, "before": before},
            **{"seconds": round(seconds, 6), "unsafe": self.unsafe},
        }
        return {**found, "reverified": of_it}


def _short(id: str) -> str:
    """No other rollout's, and short enough for the name of a sandbox to begin with it."""
    return id if len(id) <= LONGEST else f"{id[: LONGEST - 9]}-{hashlib.sha256(id.encode()).hexdigest()[:8]}"
