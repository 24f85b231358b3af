"""Write data/example.jsonl: `python environments/counter/generate.py [--seed 1] [--rows 24]`."""

from __future__ import annotations

import random
from typing import Any

from gymbox_sandbox.generator import call_item, message_item, write_dataset

INCREMENT = {
    "type": "function",
    "name": "increment_counter",
    "description": "Add a number to the counter.",
    "parameters": {
        "type": "object",
        "properties": {"count": {"type": "integer", "description": "What to add; negative numbers take away."}},
        "required": ["count"],
        "additionalProperties": False,
    },
    "strict": True,
}
VALUE = {
    "type": "function",
    "name": "get_counter_value",
    "description": "Tell the value of the counter.",
    "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    "strict": True,
}


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` tasks, the same for the same seed; none is done by leaving the counter where it is."""
    draw = random.Random(seed)
    return [row(index, draw) for index in range(count)]


def row(index: int, draw: random.Random) -> dict[str, Any]:
    initial = draw.randint(-20, 100)
    make = [adding, adding_and_taking, reaching][index % 3]
    request, steps = make(draw, initial)
    final = initial + sum(steps)
    return {
        "id": f"counter-{index:03d}",
        "initial_count": initial,
        "expected_count": final,
        "responses_create_params": {"input": [{"role": "user", "content": request}], "tools": [INCREMENT, VALUE]},
        "gold_replies": gold(request, steps, final),
    }


def adding(draw: random.Random, initial: int) -> tuple[str, list[int]]:
    """Two to four additions, said one after another."""
    steps = [draw.randint(1, 50) for _ in range(draw.randint(2, 4))]
    said = ", then ".join(f"add {step}" for step in steps)
    return f"{said.capitalize()}, then get the count.", steps


def adding_and_taking(draw: random.Random, initial: int) -> tuple[str, list[int]]:
    """An addition and a smaller subtraction."""
    add, take = draw.randint(20, 60), draw.randint(1, 19)
    return f"Add {add} to the counter and take {take} away again. What does it say then?", [add, -take]


def reaching(draw: random.Random, initial: int) -> tuple[str, list[int]]:
    """A target: the agent must look first and work out the difference."""
    step = draw.choice([-1, 1]) * draw.randint(1, 80)
    return f"Bring the counter to exactly {initial + step}.", [step]


def gold(request: str, steps: list[int], final: int) -> list[list[dict[str, Any]]]:
    """What a model says, a list of output items a turn, to do the task right."""
    look = [call_item("look", "get_counter_value", {})]
    act = [call_item(f"add_{number}", "increment_counter", {"count": step}) for number, step in enumerate(steps)]
    answer = [message_item(f"The counter is at {final} now.")]
    return [look, act, answer] if request.startswith("Bring") else [act, look, answer]


if __name__ == "__main__":
    write_dataset(rows, beside=__file__)
