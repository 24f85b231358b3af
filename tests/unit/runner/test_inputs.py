"""Inputs: which differences between two manifests are changes."""

from __future__ import annotations

from typing import Any

import pytest
from gymbox.inputs import changes, levelled
from pydantic import BaseModel, Field


class Part(BaseModel):
    url: str
    weight: float = 1


class Mine(BaseModel):
    name: str
    rate: float = Field(5, ge=0)
    parts: list[Part] = []
    part: Part | None = None
    tags: dict[str, Part] = Field(default_factory=dict)
    checked: int = Field("no number", validate_default=True)


MINE = f"{Mine.__module__}.Mine"


def told(**fields: Any) -> dict[str, Any]:
    return {"model": {"_target_": MINE, "name": "a", **fields}}


def differ(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The same both ways."""
    assert bool(changes(*levelled(before, now))) == bool(changes(*levelled(now, before)))
    return changes(*levelled(before, now))


@pytest.mark.parametrize(
    "more", [{"rate": 5}, {"rate": 5.0}, {"parts": []}, {"part": None}, {"tags": {}}, {"rate": 5, "parts": []}]
)
def test_a_field_that_only_one_knows_is_no_change_while_it_has_its_default(more: dict[str, Any]) -> None:
    assert differ(told(), told(**more)) == ""
    assert differ({"agents": {"one": told()}}, {"agents": {"one": told(**more)}}) == ""


def test_so_are_the_fields_of_what_it_holds() -> None:
    parts = told(parts=[{"url": "x"}, {"url": "y"}]), told(parts=[{"url": "x", "weight": 1}, {"url": "y"}])
    assert differ(*parts) == ""
    assert differ(told(part={"url": "x"}), told(part={"url": "x", "weight": 1.0})) == ""


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (told(), told(rate=6), "model.rate: was None, is 6"),
        (told(rate=5), told(rate=6), "model.rate: was 5, is 6"),
        (told(rate=6), told(), "model.rate: was 6, is None"),
        (told(), told(part={"url": "x"}), "model.part.url: was None, is 'x'"),
        (told(part={"url": "x"}), told(part={"url": "x", "weight": 2}), "model.part.weight: was None, is 2"),
        (told(tags={}), told(tags={"weight": 1}), "model.tags.weight: was None, is 1"),
        (told(), told(unheard_of=1), "model.unheard_of: was None, is 1"),
        (told(), told(checked=1), "model.checked: was None, is 1"),
        ({"model": {"_target_": MINE}}, told(), "model.name: was None, is 'a'"),
        (told(parts=[{"url": "x"}]), told(parts=[{"url": "x"}, {"url": "y"}]), "model.parts: was [{'url': 'x'}], is"),
        ({"rate": 5}, {}, "rate: was 5, is None"),
    ],
)
def test_what_has_changed_is_named(before: dict[str, Any], now: dict[str, Any], named: str) -> None:
    assert differ(before, now).strip().startswith(named)


def test_a_default_that_is_another_now_is_a_change() -> None:
    assert "model.rate: was 4, is 5" in differ(told(rate=4), told(rate=5))


@pytest.mark.parametrize("target", ["nowhere.Model", "gymbox.nowhere.Model", "gymbox.inputs.Missing", "Model", "", 3])
def test_of_a_class_that_is_not_known_each_field_counts(target: Any) -> None:
    model = {"_target_": target}
    assert differ({"model": model}, {"model": {**model, "rate": 5}}) == "  model.rate: was None, is 5"


def test_so_it_is_where_the_class_is_another() -> None:
    other = {"model": {**told()["model"], "_target_": f"{Part.__module__}.Part", "rate": 5}}
    assert "model.rate" in differ(told(), other)


def test_nothing_is_imported_because_a_manifest_names_it() -> None:
    import sys

    sys.modules.pop("this", None)
    differ({"model": {"_target_": "this.s"}}, {"model": {"_target_": "this.s", "a": 1}})
    assert "this" not in sys.modules


def test_the_runners_settings_have_defaults_too() -> None:
    before = {"runner": {"limit": 3}}
    assert differ(before, {"runner": {"limit": 3, "seed_repeats": False, "params_of": {}}}) == ""
    assert "runner.seed: was None, is 1" in differ(before, {"runner": {"limit": 3, "seed": 1}})
