"""Options: one that several `gymbox eval` commands have is the same in each."""

from __future__ import annotations

from typing import Any

import pytest
from gymbox.cli import eval as evaluation
from typer.main import get_command

OF_ITS_OWN = {"--output"}
"""What is written differs, and so does where."""


def told(option: Any) -> tuple[Any, ...]:
    limits = getattr(option, "min", None), getattr(option, "max", None)
    return option.opts, option.default, option.help, option.metavar, option.multiple, option.callback is None, limits


def options() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for command in get_command(evaluation.app).commands.values():  # type: ignore[attr-defined]
        for option in (each for each in command.params if each.opts[0].startswith("-")):
            found.setdefault(option.opts[0], []).append(told(option))
    return found


SHARED = sorted(name for name, each in options().items() if len(each) > 1)


@pytest.mark.parametrize("name", [name for name in SHARED if name not in OF_ITS_OWN | {"--help"}])
def test_a_shared_option_reads_and_means_the_same(name: str) -> None:
    first, *others = options()[name]
    assert others == [first] * len(others)


def test_the_figures_options_are_shared() -> None:
    assert {"--missing", "--success", "--level", "--k", "--alpha", "--common", "--json", "--rename"} <= {*SHARED}
