from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.datasets.shapes import Misfit
from gymbox.datasets.templates import Template
from gymbox.errors import ConfigError


def said(user: str, fields: dict[str, Any], **more: Any) -> str:
    found = Template(user=user).rendered(fields, **more)
    return str(found["responses_create_params"]["input"][0]["content"])


def test_both_parts_are_filled_in_and_the_row_stays(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("system: Speak {language}.\nuser: |-\n  {q}\n  {{braces}}\n")
    row = {"q": "why {not}?", "language": "Latin", "responses_create_params": {"temperature": 0}}
    assert Template.load(tmp_path / "t.yaml").rendered(row) == {
        **row,
        "responses_create_params": {
            "temperature": 0,
            "input": [
                {"role": "system", "content": "Speak Latin."},
                {"role": "user", "content": "why {not}?\n{braces}"},
            ],
        },
    }


def test_values_are_filled_in_by_their_kind() -> None:
    row = {"n": 1.5, "flag": True, "list": ["ä", {"b": 1}], "deep": {"k": ["x", "y"]}}
    assert said("{n:.2f} {flag} {list} {list[0]} {list[1][b]} {deep[k][1]}", row) == '1.50 true ["ä", {"b": 1}] ä 1 y'


@pytest.mark.parametrize(
    ("user", "fields", "message"),
    [
        ("{qestion}", {"question": "x"}, "qestion: .*no such field; did you mean 'question'"),
        ("{q[1]}", {"q": ["x"]}, r"q\[1\]: the template names it, the row has none"),
        ("{q[a]}", {"q": 3}, r"q\[a\]: the template names it"),
        ("{q}", {"q": None}, "q: is null"),
        ("{q:d}", {"q": "x"}, "'x' cannot be written as 'd'"),
        ("x", {"responses_create_params": {"input": "y"}}, "input: is there already; replace it with --overwrite"),
        ("x", {"responses_create_params": 3}, "responses_create_params: is no object"),
    ],
)
def test_a_row_that_does_not_fit_is_told(user: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Misfit, match=message):
        said(user, fields)


def test_an_input_is_replaced_where_that_is_asked_for() -> None:
    assert said("x", {"responses_create_params": {"input": "y"}}, overwrite=True) == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user: [", "is not YAML"),
        ("system: x", "user"),
        ("user: x\nsytem: y", "did you mean 'system'"),
        ("user: '{'", "brace that is meant as one"),
        ("user: '{q:>99999999999}'", r"\{q:>99999999999\} is wider than 1000"),
        ("user: '{q.__class__}'", r"\{q.__class__\} is no placeholder"),
        ("user: '{}'", r"\{\} is no placeholder"),
        ("user: '{q!r}'", r"\{q\} is no placeholder"),
    ],
)
def test_a_template_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Template.load(tmp_path / "t.yaml")


def test_a_template_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Template.load(tmp_path / "t.yaml")
