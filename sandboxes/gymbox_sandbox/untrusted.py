"""Untrusted: call a function that a model wrote, and believe nothing but the values it returned.

A trusted parent (`verify`) and an untrusted child over pipes. The child runs as the agent's user, gets the inputs and
never the expected answers, and sends back values of exact builtin types; the parent compares. So what the code prints,
how it exits, what its objects say when compared, and what it changes in its own process cannot raise a reward:

    outcomes = await call_function(self.exec, source, "add", [[1, 2], [3, 4]])
    passed = [same(expected, outcome.value) for expected, outcome in zip([3, 7], outcomes) if outcome.ok]
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gymbox_sandbox import untrusted_child
from gymbox_sandbox.untrusted_child import decode, encode
from gymbox_sandbox.wire import ExecResult

__all__ = ["Outcome", "call_function", "decode", "encode", "same"]

CHILD = inspect.getsource(untrusted_child)
ALONE = {"LD_PRELOAD": "", "LD_LIBRARY_PATH": ""}
"""What an image's variables say to its own programs is not for the server's Python, which may be another libc's."""
OUTPUT_LIMIT = 2_000_000
"""Bytes of results that are read; more is not a result."""


class Exec(Protocol):
    """`ResourcesServer.exec`."""

    async def __call__(
        self, command: list[str], *, stdin: str, cwd: str, env: dict[str, str], timeout: float, output_limit: int
    ) -> ExecResult: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call came to: a value, or the reason why there is none."""

    value: Any = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it returned a value of plain builtin types."""
        return self.error is None


async def call_function(
    exec: Exec,
    source: str,
    function: str,
    calls: Sequence[Sequence[Any]],
    *,
    timeout: float = 10,
    memory_mb: int = 512,
    python: str | None = None,
) -> list[Outcome]:
    """Run `source` in a process of the agent's user, and `function` of it with each of `calls`; one Outcome a call.

    Whatever the code does, this returns: an exception, an early exit, a hang, too much output or memory are outcomes
    without a value. A result channel that carries anything but one well-formed line a call voids every call.

    Args:
        exec: `self.exec` of a resources server.
        calls: Positional arguments of each call, of plain builtin types.
        timeout: Seconds for the whole process.
        memory_mb: Address space of the process.
        python: Interpreter to use; the server's own by default.
    """
    request = {
        "source": source,
        "function": function,
        "calls": [encode(list(arguments)) for arguments in calls],
        "memory": memory_mb * 1024 * 1024,
    }
    result = await exec(
        # -I and -S: no site-packages, no .pth, no PYTHON* variable, nothing from the working directory
        [python or sys.executable, "-I", "-S", "-c", CHILD],
        stdin=json.dumps(request),
        cwd="/",  # the workspace is the agent's: it may have closed it to everyone
        env=ALONE,
        timeout=timeout,
        output_limit=OUTPUT_LIMIT,
    )
    why_missing = "it did not end in time" if result.timed_out else f"it ended early ({_ending(result)})"
    try:
        found = _outcomes(result, len(calls))
    except Exception as error:  # whatever reading it leads to, the code wrote it
        reason = f"the result channel carries something else than results: {error}"
        return [Outcome(error=reason[:300])] * len(calls)
    return [found.get(id, Outcome(error=why_missing)) for id in range(len(calls))]


def _ending(result: ExecResult) -> str:
    return f"signal {result.signal}" if result.exit_code is None else f"exit code {result.exit_code}"


def _outcomes(result: ExecResult, calls: int) -> dict[int, Outcome]:
    """The outcomes on the channel, by call.

    Raises:
        Exception: anything there is not what the child writes.
    """
    if result.truncated:
        raise ValueError(f"more than {OUTPUT_LIMIT} bytes")
    found: dict[int, Outcome] = {}
    # a last line without its end was being written when the process ended: not a result, and no forgery either
    for line in result.stdout.split("\n")[:-1]:
        content = json.loads(line)
        if not isinstance(content, dict) or type(content.get("id")) is not int:
            raise ValueError("a line that is no result")
        id = content.pop("id")
        if id in found or not 0 <= id < calls:
            raise ValueError(f"a second or unknown result {id}")
        match content:
            case {"value": value, **rest} if not rest:
                found[id] = Outcome(value=decode(value))
            case {"error": str(error), **rest} if not rest:
                found[id] = Outcome(error=error[:300])
            case _:
                raise ValueError("a line that is no result")
    return found


def same(expected: Any, actual: Any, *, tolerance: float = 0.0) -> bool:
    """Whether two values are equal and of exactly the same types all the way down.

    `True` is not `1`, `1` is not `1.0`, a tuple is not a list. NaN is the same as NaN and as nothing else.

    Args:
        tolerance: Relative and absolute error allowed between two finite floats (outside of sets and keys).
    """
    kind = type(expected)
    if type(actual) is not kind:
        return False
    if kind is float:
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        if math.isinf(expected) or math.isinf(actual):
            return bool(expected == actual)
        return math.isclose(expected, actual, rel_tol=tolerance, abs_tol=tolerance)
    if kind in (list, tuple):
        return len(expected) == len(actual) and all(
            same(one, other, tolerance=tolerance) for one, other in zip(expected, actual, strict=True)
        )
    if kind in (dict, set, frozenset) and len(expected) != len(actual):
        return False
    if kind is dict:
        others = {_typed(key): value for key, value in actual.items()}
        return all(
            _typed(key) in others and same(value, others[_typed(key)], tolerance=tolerance)
            for key, value in expected.items()
        )
    return bool(_typed(expected) == _typed(actual))


def _typed(value: Any) -> Any:
    """A hashable stand-in that is equal only for values of the same types."""
    kind = type(value)
    if kind is tuple:
        return kind, tuple(_typed(item) for item in value)
    if kind in (set, frozenset):
        return kind, frozenset(_typed(item) for item in value)
    return kind, value
