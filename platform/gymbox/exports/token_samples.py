"""Token samples: the very tokens of a rollout, as the model's engine told them, never tokenised again.

A sample is one unbroken sequence: the prompt, what was sampled, what came in between (tool results, the template's
own tokens), what was sampled next, …; its mask is 1 for each token that was sampled, else 0. Where a later prompt does
not begin with all of the tokens before it (the history was rewritten or forked), a branch of its own begins, exact in
itself, and no token counts in two.

They come from the run's recorded calls (`runner.capture=on`; `gymbox.models.trajectories`) where those of the rollout
are there, else from the items of its response, which bear ids with `model.token_ids` and in NeMo Gym's
rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymbox_sandbox.responses import FunctionCallOutput, Item, Message, Response
from pydantic import ValidationError

from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import Rollout
from gymbox.exports.left_out import Reason, Unfit
from gymbox.models.cassettes import CALLS, RecordedCall, call_in, cassette_files
from gymbox.models.token_ids import PREFIX_FAULT, TOKEN_FIELDS, token_ids_of
from gymbox.models.trajectories import rebuilt


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One unbroken sequence."""

    ids: list[int]
    mask: list[int]
    """As long as `ids`: 1 for what was sampled, and is to be learnt from."""


class RecordedCalls:
    """Where the recorded calls of a run's rollouts stand; only their places are kept in memory."""

    def __init__(self, run: Path) -> None:
        """
        Raises:
            ConfigError: a line is damaged, or cannot be read.
        """
        self._places: dict[str, list[tuple[Path, int, int]]] = {}
        if not any((run / CALLS).glob("*.jsonl")):
            return
        for path in cassette_files(run):
            try:
                with path.open("rb") as file:
                    offset = 0
                    for line in file:
                        if line.endswith(b"\n"):  # a torn last one was never acknowledged
                            rollout = call_in(line, f"{path} at byte {offset}").rollout
                            self._places.setdefault(rollout, []).append((path, offset, len(line)))
                        offset += len(line)
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}") from error

    def of(self, rollout: Rollout) -> list[RecordedCall]:
        """Those of the attempt that counted, in their order; none where none are recorded."""
        attempt = str(rollout.line.get("sandbox") or rollout.id)
        calls = []
        for path, offset, length in self._places.get(attempt, []):
            with path.open("rb") as file:
                file.seek(offset)
                calls.append(call_in(file.read(length), str(path)))
        return sorted(calls, key=lambda call: call.call)


def samples_of(rollout: Rollout, calls: list[RecordedCall], *, branches: bool = True) -> list[TokenSample]:
    """Its samples, the main branch first.

    Args:
        calls: its recorded calls, if there are any.
        branches: whether one whose history was rewritten or forked gives a sample for each branch.

    Raises:
        Unfit: not every answer has its ids; calls are missing; it is masked for another reason than its branches; or
            there are several, and they are not wanted.
    """
    found, reason = _of_calls(rollout, calls) if calls else _of_items(rollout)
    found = [sample for sample in found if 1 in sample.mask]
    if not found:
        raise Unfit(Reason.NO_ANSWER)
    told = rollout.line.get("mask_reason")
    explained = len(found) > 1 and (told in (None, reason) or str(told).startswith(PREFIX_FAULT))
    if rollout.line.get("mask_sample") and not explained:
        raise Unfit(Reason.MASKED, str(told or "mask_sample"))
    if len(found) > 1 and not branches:
        raise Unfit(Reason.SEVERAL_BRANCHES, reason or f"{len(found)} branches")
    return found


def _of_calls(rollout: Rollout, calls: list[RecordedCall]) -> tuple[list[TokenSample], str | None]:
    made = (rollout.line.get("calls") or {}).get("count")
    whole = rebuilt(calls, missing=max(0, made - len(calls)) if isinstance(made, int) else 0)
    if not whole.summary["generated_tokens_captured"]:
        raise Unfit(Reason.NO_TOKEN_IDS)
    if whole.fault is not None:
        raise Unfit(Reason.UNSURE, whole.fault)
    samples = []
    for branch in whole.trajectories:
        if branch.token_ids is None or branch.loss_mask is None:
            raise Unfit(Reason.NO_TOKEN_IDS, whole.mask_reason or "")
        samples.append(TokenSample(branch.token_ids, branch.loss_mask))
    return samples, whole.mask_reason


def _of_items(rollout: Rollout) -> tuple[list[TokenSample], str | None]:
    try:
        output = Response.model_validate(rollout.line.get("response") or {}).output
    except ValidationError as error:
        raise Unfit(Reason.NO_TOKEN_IDS, str(error)) from error
    samples: list[TokenSample] = []
    for tokens in _answers(output):
        prompt, sampled = tokens["prompt_token_ids"], tokens["generation_token_ids"]
        last = samples[-1] if samples else None
        if last is None or prompt[: len(last.ids)] != last.ids:
            last = TokenSample([], [])
            samples.append(last)
        added = prompt[len(last.ids) :]
        last.mask.extend([0] * len(added) + [1] * len(sampled))
        last.ids.extend([*added, *sampled])
    if not samples:
        raise Unfit(Reason.NO_TOKEN_IDS)
    return samples, None


def _answers(output: Iterable[Item]) -> list[dict[str, Any]]:
    """The token ids of each answer of the model, which its last item bears.

    Raises:
        Unfit: one has none.
    """
    answers: list[dict[str, Any]] = []
    bare = unfinished = False
    for item in output:
        if isinstance(item, FunctionCallOutput) or (isinstance(item, Message) and item.role != "assistant"):
            bare, unfinished = bare or unfinished, False
            continue
        tokens = token_ids_of(item)
        if tokens and not all(map(_is_ids, map(tokens.get, TOKEN_FIELDS[:2]))):
            raise Unfit(Reason.NO_TOKEN_IDS, "what stands for them is no list of whole numbers")
        if tokens:
            answers.append(tokens)
        unfinished = not tokens
    if answers and (bare or unfinished):
        raise Unfit(Reason.NO_TOKEN_IDS, "not every answer of the model has its ids")
    return answers


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)
