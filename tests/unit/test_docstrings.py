"""Docstrings of what programs use: whatever raises errors of its own says which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2] / "platform" / "gymbox"
FILES = [PLATFORM / f"{name}.py" for name in ("client", "held_sandbox", "sandbox_client", "sandbox_calls")]
FILES += [path for folder in ("sdk", "runs") for path in (PLATFORM / folder).rglob("*.py")]
ENTRIES = ("__aenter__", "__enter__", "__call__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.AST) -> Iterator[Function]:
    """Functions and methods without an underscore, and entering."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public(child)
        elif isinstance(child, Function) and (not child.name.startswith("_") or child.name in ENTRIES):
            yield child


def raised_by(node: ast.AST) -> Iterator[ast.Raise]:
    """What it raises itself, not by functions within."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            yield child
        elif not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from raised_by(child)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PLATFORM)))
def test_what_raises_says_so(path: Path) -> None:
    silent = [
        function.name
        for function in public(ast.parse(path.read_text()))
        if any(raised_by(function)) and "Raises" not in (ast.get_docstring(function) or "")
    ]
    assert silent == []
