"""Tokens and what they cost, whatever the dialect."""

from typing import Any

import pytest
from gymbox.models.prices import Price, Spent, spent_in

ANSWERS: list[dict[str, Any]] = [
    {
        "usage": {
            "input_tokens": 100,
            "output_tokens": 20,
            "input_tokens_details": {"cached_tokens": 60},
            "output_tokens_details": {"reasoning_tokens": 5},
        }
    },
    {
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 5},
        }
    },
    {
        "usage": {
            "input_tokens": 30,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 10,
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 5},
        }
    },
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_all_dialects_count_the_same(answer: dict[str, Any]) -> None:
    spent = spent_in(answer)
    assert spent == Spent(input_tokens=100, cached_tokens=60, output_tokens=20, reasoning_tokens=5)


def test_cached_tokens_have_a_price_of_their_own_or_the_usual_one() -> None:
    spent = Spent(input_tokens=1_000_000, cached_tokens=600_000, output_tokens=500_000)
    assert Price(input=2, cached=0.5, output=10).cost(spent) == pytest.approx(0.8 + 0.3 + 5)
    assert Price(input=2, output=10).cost(spent) == pytest.approx(2 + 5)


def test_what_tells_of_no_tokens_has_none() -> None:
    assert spent_in(None) is spent_in({}) is spent_in({"usage": None}) is None
    assert spent_in({"usage": {"prompt_tokens": None}}) == Spent()
