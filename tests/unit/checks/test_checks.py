"""The checks of an environment find what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from gymbox.checks import SHOWN, Finding, echoed, tool_faults
from gymbox.dataset import Row

GOOD = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"by": {"type": "integer"}},
        "required": ["by"],
        "additionalProperties": False,
    },
}


def test_a_good_definition_has_no_faults() -> None:
    assert tool_faults(GOOD) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "a" * 65}, "is no tool name"),
        ({"name": "with space"}, "is no tool name"),
        ({"name": None}, "is no tool name"),
        ({"type": "custom"}, "not 'function'"),
        ({"description": ""}, "has no description"),
        ({"parameters": None}, "no object schema"),
        ({"parameters": {"type": "array"}}, "no object schema"),
        ({"parameters": {**GOOD["parameters"], "required": ["by", "to"]}}, "requires to"),
        ({"parameters": {**GOOD["parameters"], "required": []}}, "strict, but"),
        ({"parameters": {**GOOD["parameters"], "additionalProperties": True}}, "strict, but"),
    ],
)
def test_what_a_model_provider_would_refuse_is_a_fault(change: dict[str, Any], fault: str) -> None:
    assert any(fault in found for found in tool_faults({**GOOD, **change}))


def test_a_finding_shows_its_first_faults_and_counts_the_rest() -> None:
    finding = Finding("a check", 9, tuple("abcde"))
    assert not finding.passed
    assert finding.detail == f"a; b; c; and {5 - SHOWN} more"
    assert Finding("a check", 9).passed and Finding("a check", 9).detail == ""


def test_an_echo_says_every_word_it_was_told() -> None:
    params = {"instructions": "Be brief.", "input": [{"role": "user", "content": "What is 2 + 2?"}]}
    row = Row(0, "one", {"responses_create_params": params})
    assert echoed(row).output_text == "Be brief.\nWhat is 2 + 2?"
