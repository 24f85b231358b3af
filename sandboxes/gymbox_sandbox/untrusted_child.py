"""Untrusted child: the process that untrusted code lives in.

Its source is handed to an isolated interpreter (`python -I -S -c`), so it imports only the standard library. It gets
inputs and never an expected answer; nothing that it writes is believed beyond "these are the values it returned".
See untrusted.py, the trusted parent.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

PLAIN = (bool, int, str, type(None))
DEEPEST = 50
"""Containers in one another that a value may have."""
COLLISIONS = 100
"""Values of one set, or keys of one dict, that may have the hash of another one; more of them take long to look up."""


def encode(value: Any, depth: int = DEEPEST) -> Any:
    """`value` as JSON that keeps exact types; what JSON has no form for becomes `{"$type": …}`.

    Raises:
        TypeError: it is, or holds, something else than a builtin value; subclasses are something else.
        ValueError: it is nested deeper than `depth`.
    """
    if depth < 0:
        raise ValueError(f"a value that is nested deeper than {DEEPEST}")
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [encode(item, depth - 1) for item in value]
    if kind in (tuple, set, frozenset):
        return {f"${kind.__name__}": [encode(item, depth - 1) for item in value]}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: encode(item, depth - 1) for key, item in value.items()}
        return {"$dict": [[encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items()]}
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no plain builtin type")


def decode(coded: Any, depth: int = 2 * DEEPEST) -> Any:
    """What `encode` was given; of a hostile code, nothing that takes long to make or to look at.

    Args:
        depth: Lists and objects in one another that are followed; a container has up to two.

    Raises:
        ValueError, TypeError, OverflowError: no such code.
    """
    if depth < 0:
        raise ValueError(f"a value that is nested deeper than {DEEPEST}")
    if isinstance(coded, list):
        return [decode(item, depth - 1) for item in coded]
    if not isinstance(coded, dict):
        return coded
    if not any(key.startswith("$") for key in coded):
        return {key: decode(item, depth - 1) for key, item in coded.items()}
    [(kind, content)] = coded.items()
    match kind:
        case "$float":
            return float(content)
        case "$tuple":
            return tuple(decode(content, depth - 1))
        case "$set":
            return set(scattered(decode(content, depth - 1)))
        case "$frozenset":
            return frozenset(scattered(decode(content, depth - 1)))
        case "$bytes":
            return bytes.fromhex(content)
        case "$dict":
            keys = scattered([decode(key, depth - 2) for key, _ in content])
            return dict(zip(keys, [decode(item, depth - 2) for _, item in content], strict=True))
    raise ValueError(f"{kind!r} is no type")


def scattered(values: list[Any]) -> list[Any]:
    """`values`, which have hashes of their own but for a few: looking those up that all share one takes ages.

    Raises:
        ValueError: more than a few have the hash of another.
    """
    if len(values) - len({hash(value) for value in values}) > COLLISIONS:
        raise ValueError("values with the same hash")
    return values


def main() -> None:
    """Read `{source, function, calls, memory}` from stdin; write `{id, value}` or `{id, error}`, a line a call."""
    request = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    # what the code prints goes nowhere: stdout is for results, and a full pipe must not stop it
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    limit_memory(request["memory"])
    function = load(request["source"], request["function"])
    for id, arguments in enumerate(request["calls"]):
        line = outcome(id, function, arguments).encode() + b"\n"
        while line:
            line = line[os.write(channel, line) :]
    os._exit(0)  # at once: threads and exit handlers of the code have nothing left to say


def limit_memory(size: int) -> None:
    """Limit this process to `size` bytes of address space, and to no core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def load(source: str, name: str) -> Any:
    """The function that `source` defines, or one that raises what went wrong in getting it."""
    namespace: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(compile(source, "<answer>", "exec"), namespace)
        return namespace[name]
    except BaseException as error:  # whatever untrusted code raises is its outcome, also SystemExit
        failure = error

        def failed(*_: Any) -> Any:
            raise failure

        return failed


def outcome(id: int, function: Any, arguments: list[Any]) -> str:
    """What calling `function` with `arguments` came to, as a line without its end."""
    try:
        return json.dumps({"id": id, "value": encode(function(*decode(arguments)))})
    except BaseException as error:  # as above
        return json.dumps({"id": id, "error": describe(error)})


def describe(error: BaseException) -> str:
    """One short line about `error`, whose own `__str__` may be hostile."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return "an exception that cannot be shown"


if __name__ == "__main__":
    main()
