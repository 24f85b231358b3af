"""Responses: what the models can do beside holding fields."""

from __future__ import annotations

from gymbox_sandbox.responses import Usage


def test_usages_add_up_with_the_details_that_only_one_provider_adds() -> None:
    one = Usage.model_validate({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "tier": "a"})
    other = Usage.model_validate({"input_tokens": 4, "output_tokens": 1, "tier": "b", "cost": 0.5, "region": "x"})
    assert (one + other).dump() == {
        "input_tokens": 7,
        "output_tokens": 1,
        "input_tokens_details": {"cached_tokens": 2},
        "tier": "a",
        "cost": 0.5,
        "region": "x",
    }
    assert (other + one).dump()["input_tokens_details"] == {"cached_tokens": 2}


def test_adding_usages_changes_neither() -> None:
    one, other = Usage(input_tokens=1), Usage(input_tokens=2)
    assert sum([other], start=one) == Usage(input_tokens=3)
    assert (one, other) == (Usage(input_tokens=1), Usage(input_tokens=2))
