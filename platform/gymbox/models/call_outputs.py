"""Call outputs: which output of a history belongs to which of its calls."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Item

from gymbox.errors import Invalid

Outputs = dict[int, tuple[int, FunctionCallOutput]]
"""By the place of the call: the place of its output, and the output."""


def outputs_of_calls(items: Sequence[Item]) -> Outputs:
    """The output of each call.

    Raises:
        Invalid: a call without output, or an output without an earlier call, by its place.
    """
    # by call id and in order, since some endpoints give the same ids in every turn
    waiting: dict[str, deque[tuple[int, FunctionCall]]] = defaultdict(deque)
    found: Outputs = {}
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall):
            waiting[item.call_id].append((index, item))
        elif isinstance(item, FunctionCallOutput):
            if not waiting[item.call_id]:
                raise Invalid(f"input[{index}]: an output for {item.call_id!r}, which no earlier call has")
            place, _ = waiting[item.call_id].popleft()
            found[place] = (index, item)
    if left := [calls[0] for calls in waiting.values() if calls]:
        index, call = min(left, key=lambda each: each[0])
        raise Invalid(f"input[{index}]: the call {call.call_id!r} of {call.name!r} has no output")
    return found
