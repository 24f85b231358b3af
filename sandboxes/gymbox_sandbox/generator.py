"""Generator: what an environment's `generate.py` has besides its tasks.

def rows(seed: int, count: int) -> list[dict[str, Any]]: ...

if __name__ == "__main__":
    write_dataset(rows, beside=__file__)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Item = dict[str, Any]


def call_item(id: str, name: str, arguments: dict[str, Any]) -> Item:
    """An output item in which a model calls a tool, for gold replies."""
    text = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function_call", "call_id": id, "name": name, "arguments": text}


def message_item(text: str) -> Item:
    """An output item in which a model says something, for gold replies."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def write_dataset(rows: Callable[[int, int], Iterable[dict[str, Any]]], *, beside: str) -> None:
    """The command line of a generator: `--seed 1 --rows 24 --output data/example.jsonl`, these being the defaults.

    Args:
        rows: gives as many tasks as the second argument says, the same for the same seed.
        beside: the generator's file, from whose folder the default output is reckoned.
    """
    parser = argparse.ArgumentParser(description="Write the dataset of this environment.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--output", type=Path, default=dataset_of(beside))
    options = parser.parse_args()
    write_rows(rows(options.seed, options.rows), options.output)


def dataset_of(generator: str) -> Path:
    """Where the rows of a generator go, unless it is told otherwise."""
    return Path(generator).resolve().parent / "data" / "example.jsonl"


def write_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write a dataset: a row a line, in UTF-8."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
