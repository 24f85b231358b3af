"""Trajectories: the recorded calls of a rollout put together again, for training on what was sampled.

Calls whose histories grow one out of the other make one trajectory: call k goes on from call j where its prompt begins
with all that j was asked and answered, token by token where ids were recorded, else item by item. Where that breaks
(the history was compacted, a subagent has its own, the text became other tokens) another branch begins, and each
branch is exact in itself. The main branch is the one that ends with the rollout's last call.

    Rebuilt             trajectories  main first, then the others in the order in which they end
                        mask_sample   the rollout is not to be trained on as one; mask_reason says why
                        fault         why not by its branches either; None where these are whole
    Trajectory          kind          main; fork (leaves the main one after a shared beginning); rewritten (it ended
                                      before the main one began, which has another history); subagent (between)
                        calls         numbers of its calls; new_calls: without those that an earlier branch has, too
                        input         Responses items that its first call was asked with (instructions beside it)
                        output        all that followed: answers, tool results, further messages; the last item of
                                      each answer bears that call's token ids
                        token_ids     prompt of the first call, what it sampled, what was added, what was sampled, …
                        loss_mask     1 for each token that was sampled by one of new_calls, else 0
                        log_probs     of sampled tokens, 0.0 for others
    (the last three are None where a call has no token ids)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gymbox_sandbox.responses import FunctionCall, Item, Message, Reasoning, Response, ResponsesParams
from pydantic import BaseModel, Field

from gymbox.errors import Problem
from gymbox.models.cassettes import RecordedCall
from gymbox.models.token_ids import TOKEN_FIELDS, token_ids_of


class Trajectory(BaseModel):
    """One unbroken history; see the module."""

    kind: Literal["main", "fork", "rewritten", "subagent"] = "main"
    calls: list[int]
    new_calls: list[int]
    instructions: str | None = None
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    token_ids: list[int] | None = None
    loss_mask: list[int] | None = None
    log_probs: list[float] | None = None


class Rebuilt(BaseModel):
    """All that the calls of a rollout tell; see the module."""

    rollout: str = ""
    trajectories: list[Trajectory] = Field(default_factory=list)
    mask_sample: bool = False
    mask_reason: str | None = None
    fault: str | None = None
    """Why not even its branches, each by itself, are to be trained on; None where several of them are all there is."""
    summary: dict[str, Any] = Field(default_factory=dict)
    """Figures, under the names that NeMo Gym has for them in `_ng_token_capture`."""

    @property
    def main(self) -> Trajectory | None:
        return self.trajectories[0] if self.trajectories else None


@dataclass(slots=True, eq=False)
class _Step:
    """One answered call."""

    call: RecordedCall
    instructions: str | None
    history: list[Item]
    output: list[Item]
    tokens: dict[str, Any]
    before: list[str] = field(default_factory=list)
    """A digest of the history up to each of its items that count."""
    after: str = ""
    """The digest of all of it with the answer."""
    digest: Any = None
    goes_on: _Step | None = None
    """The call that it names as the one before."""
    parent: _Step | None = None
    children: list[_Step] = field(default_factory=list)

    @property
    def seen(self) -> list[int]:
        return [*self.tokens["prompt_token_ids"], *self.tokens["generation_token_ids"]]


def rebuilt(calls: Sequence[RecordedCall], *, missing: int = 0, rollout: str = "") -> Rebuilt:
    """The trajectories that the calls of one rollout make.

    Args:
        calls: in their order; calls that failed or were cut off have no answer and count for nothing.
        missing: calls that are known to have been made and are not among these.
    """
    answered = [call for call in calls if call.error is None and call.response is not None and not call.cancelled]
    steps, faults = _steps(answered)
    for index, step in enumerate(steps):
        step.parent = _parent(step, steps[:index])
        if step.parent is not None:
            step.parent.children.append(step)
    dropped, undecided = _asked_again(steps)
    leaves = [step for step in steps if step not in dropped and all(child in dropped for child in step.children)]
    chains = [_chain(leaf) for leaf in leaves]
    if chains:
        chains.insert(0, chains.pop())  # the one with the last call
    told = _told(chains)
    has_tokens = any(step.tokens for step in steps)
    bare = [step.call.call for step in steps if not step.tokens]
    reasons = [
        f"{missing} model calls were not recorded" if missing else "",
        *faults,
        "no model call was recorded" if not calls else "",
        f"calls without token ids: {', '.join(map(str, bare))}" if has_tokens and bare else "",
        f"call {undecided[0]} was made twice, and nothing tells which answer counted" if undecided else "",
    ]
    fault = next(filter(None, reasons), None)
    forked = f"the history was rewritten or forked: {len(chains)} branches" if len(chains) > 1 else None
    reason = fault or forked
    return Rebuilt(
        rollout=rollout,
        trajectories=told,
        mask_sample=reason is not None,
        mask_reason=reason,
        fault=fault,
        summary=_summary(steps, chains, dropped, undecided, missing, len(faults)),
    )


def per_call(calls: Sequence[RecordedCall]) -> list[dict[str, Any]]:
    """Each answered call by itself: `call`, `instructions`, `input`, `output` and, where there are some, the three
    token fields."""
    steps, _ = _steps([call for call in calls if call.error is None and call.response and not call.cancelled])
    return [
        {
            "call": step.call.call,
            "instructions": step.instructions,
            "input": [item.dump() for item in step.history],
            "output": [item.dump() for item in _with_tokens(step)],
            **step.tokens,
        }
        for step in steps
    ]


def _steps(calls: Sequence[RecordedCall]) -> tuple[list[_Step], list[str]]:
    steps, faults = [], []
    answers: dict[str, _Step] = {}
    for call in calls:
        try:
            params, response = _core(call)
        except Exception as error:  # a harness may have sent anything; its rollout is masked, not lost
            text = error.detail if isinstance(error, Problem) else str(error)
            faults.append(f"call {call.call} cannot be read: {text}")
            continue
        tokens = call.tokens or (token_ids_of(response.output[-1]) if response.output else {})
        if len(tokens) != len(TOKEN_FIELDS):
            tokens = {}
        step = _Step(call, params.instructions, params.items, list(response.output), tokens)
        # at a back end that keeps its answers, a request may hold only what is new
        step.goes_on = answers.get(str(call.request.get("previous_response_id")))
        digest = step.goes_on.digest.copy() if step.goes_on else hashlib.sha256(repr(params.instructions).encode())
        step.before.append(digest.hexdigest())
        for item in step.history:
            step.before.append(_further(digest, item))
        for item in step.output:
            _further(digest, item)
        step.after, step.digest = digest.hexdigest(), digest
        answers[response.id or ""] = step
        steps.append(step)
    return steps, faults


def _core(call: RecordedCall) -> tuple[ResponsesParams, Response]:
    """What was asked and answered, in the Responses format."""
    assert call.response is not None
    if call.dialect == "chat":
        from gymbox.models.chat_answers import response_from_chat
        from gymbox.models.chat_requests import params_from_chat

        return params_from_chat(call.request), response_from_chat(call.response)
    if call.dialect == "messages":
        from gymbox.models.messages_answers import response_from_messages
        from gymbox.models.messages_requests import params_from_messages

        return params_from_messages(call.request), response_from_messages(call.response)
    return ResponsesParams.model_validate(call.request), Response.model_validate(call.response)


def _further(digest: Any, item: Item) -> str:
    """The digest with one more item. Reasoning does not count, since many harnesses do not send it back."""
    said: list[Any] | None
    if isinstance(item, Reasoning):
        said = None
    elif isinstance(item, Message):
        role = "system" if item.role == "developer" else item.role
        said = [role, item.text or ("" if isinstance(item.content, str) else item.content)]
    elif isinstance(item, FunctionCall):
        said = [item.call_id, item.name, _parsed(item.arguments)]
    else:
        fields = {name: value for name, value in item.dump().items() if name not in ("id", "status")}
        said = [item.type, fields]
    if said is not None and said != ["assistant", ""]:
        digest.update(json.dumps(said, sort_keys=True).encode() + b"\n")
    return str(digest.hexdigest())


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _parent(step: _Step, earlier: Sequence[_Step]) -> _Step | None:
    """The latest of the longest histories that this call goes on from."""
    if step.goes_on is not None and not (step.tokens and step.goes_on.tokens):
        return step.goes_on
    if step.tokens:
        prompt = step.tokens["prompt_token_ids"]
        exact = [other for other in earlier if other.tokens and _begins(prompt, other)]
        if exact:
            return max(exact, key=lambda other: (_length(other), other.call.call))
    # where both have ids and these do not fit, the items count for nothing
    places = {digest: index for index, digest in enumerate(step.before)}
    like = [other for other in earlier if other.after in places and not (step.tokens and other.tokens)]
    return max(like, key=lambda other: (places[other.after], other.call.call), default=None)


def _length(step: _Step) -> int:
    return len(step.tokens["prompt_token_ids"]) + len(step.tokens["generation_token_ids"])


def _begins(prompt: list[int], other: _Step) -> bool:
    asked, sampled = other.tokens["prompt_token_ids"], other.tokens["generation_token_ids"]
    middle, end = len(asked), len(asked) + len(sampled)
    return len(prompt) >= end and prompt[middle:end] == sampled and prompt[:middle] == asked


def _asked_again(steps: Sequence[_Step]) -> tuple[set[_Step], list[int]]:
    """Of calls that ask exactly the same: those that were given up, and those of which nothing tells whether the
    earlier or the last answer counted."""
    dropped: set[_Step] = set()
    undecided: list[int] = []
    groups: dict[str, list[_Step]] = {}
    for step in steps:
        groups.setdefault(step.call.digest, []).append(step)
    for group in groups.values():
        if len(group) < 2:
            continue
        kept = [step for step in group if step.children]
        if not kept:
            kept = group[-1:]
            undecided.append(group[-1].call.call)
        dropped |= {step for step in group if step not in kept}
    return dropped, undecided


def _chain(leaf: _Step) -> list[_Step]:
    chain = [leaf]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain[::-1]


def _told(chains: Sequence[list[_Step]]) -> list[Trajectory]:
    told: list[Trajectory] = []
    had: set[_Step] = set()
    for chain in chains:
        kind: Literal["main", "fork", "rewritten", "subagent"] = "main"
        if told:
            shared = chain[0] is chains[0][0]
            ended = chain[-1].call.call < chains[0][0].call.call
            kind = "fork" if shared else "rewritten" if ended else "subagent"
        told.append(_trajectory(chain, kind, had))
        had |= set(chain)
    return told


def _trajectory(
    chain: Sequence[_Step], kind: Literal["main", "fork", "rewritten", "subagent"], had: set[_Step]
) -> Trajectory:
    first = chain[0]
    output: list[Item] = _with_tokens(first)
    for step in chain[1:]:
        output += [*_added(step), *_with_tokens(step)]
    new = [step for step in chain if step not in had]
    made = Trajectory(
        kind=kind,
        calls=[step.call.call for step in chain],
        new_calls=[step.call.call for step in new],
        instructions=first.instructions,
        input=[item.dump() for item in first.history],
        output=[item.dump() for item in output],
    )
    if not all(step.tokens for step in chain):
        return made
    ids: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    for step in chain:
        added = step.tokens["prompt_token_ids"][len(ids) :]
        sampled = step.tokens["generation_token_ids"]
        ids += [*added, *sampled]
        mask += [0] * len(added) + [int(step in new)] * len(sampled)
        log_probs += [0.0] * len(added) + step.tokens["generation_log_probs"]
    return made.model_copy(update={"token_ids": ids, "loss_mask": mask, "log_probs": log_probs})


def _added(step: _Step) -> list[Item]:
    """What came between the answer before and this call: tool results, further messages."""
    parent = step.parent
    assert parent is not None
    if parent is step.goes_on:
        return list(step.history)
    if parent.after in step.before:
        return step.history[len(step.before) - 1 - step.before[::-1].index(parent.after) :]
    # the tokens fit, the items were written otherwise: what a model cannot have said
    new = step.history[len(parent.history) :]
    return [
        item
        for item in new
        if not isinstance(item, FunctionCall | Reasoning)
        and not (isinstance(item, Message) and item.role == "assistant")
    ]


def _with_tokens(step: _Step) -> list[Item]:
    if not step.output or not step.tokens:
        return list(step.output)
    return [*step.output[:-1], step.output[-1].model_copy(update=step.tokens)]


def _summary(
    steps: Sequence[_Step],
    chains: Sequence[list[_Step]],
    dropped: set[_Step],
    undecided: Sequence[int],
    missing: int,
    unread: int,
) -> dict[str, Any]:
    def sampled(some: Sequence[_Step]) -> int:
        return sum(len(step.tokens["generation_token_ids"]) for step in some if step.tokens)

    captured, delivered = sampled(steps), sampled(chains[0] if chains else [])
    return {
        "builder": "prefix_merging",
        "n_calls": len(steps),
        "chains": len(chains),
        "roots": len({id(chain[0]) for chain in chains}),
        "quarantined_calls": len(dropped) + unread,
        "quarantined_fraction": round((len(dropped) + unread) / max(1, len(steps) + unread), 4),
        "generated_tokens_captured": captured,
        "generated_tokens_delivered": delivered,
        "delivered_fraction": round(delivered / captured, 4) if captured else 0.0,
        "unresolved_retries": list(undecided),
        "empty_generation_calls": sum(not step.output for step in steps),
        "capture_incomplete": missing > 0,
    }


def has_token_ids(items: Sequence[Item]) -> bool:
    """Whether any of these items bears what was sampled."""
    return any((item.model_extra or {}).get(TOKEN_FIELDS[1]) for item in items)


def told_of(calls: Sequence[RecordedCall], missing: int = 0) -> dict[str, Any]:
    """Figures of a rollout's calls, for its record: how many, how long, how many tries failed, tokens and cost. A cost
    is None where a model has no price."""
    spent = [call.usage for call in calls if call.usage is not None]
    costs = [call.cost for call in calls if call.cost is not None]
    return {
        "count": len(calls) + missing,
        "failed": sum(call.error is not None for call in calls),
        "cancelled": sum(call.cancelled for call in calls),
        "missing": missing,
        "retries": sum(max(0, len(call.tries) - 1) for call in calls),
        "seconds": round(sum(call.seconds for call in calls), 6),
        "input_tokens": sum(each.input_tokens for each in spent),
        "cached_tokens": sum(each.cached_tokens for each in spent),
        "output_tokens": sum(each.output_tokens for each in spent),
        "reasoning_tokens": sum(each.reasoning_tokens for each in spent),
        "cost": round(sum(costs), 12) if costs else None,
    }
