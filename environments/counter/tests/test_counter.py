"""The counter scores where it stands at the end, and nothing else."""

from __future__ import annotations

import pytest

ROW = {"id": "one", "initial_count": 3, "expected_count": 6}


async def test_the_counter_starts_where_the_row_says_and_keeps_what_was_added(play) -> None:
    game = await play(ROW)
    assert await game.call("get_counter_value") == {"count": 3}
    assert await game.call("increment_counter", count=2) == {"success": True}
    assert await game.call("increment_counter", count=-4) == {"success": True}
    assert await game.call("get_counter_value") == {"count": 1}


async def test_saying_the_right_number_does_not_replace_counting(play) -> None:
    game = await play(ROW)
    game.say("The counter is at 6.")
    assert await game.reward() == 0.0


async def test_two_tasks_do_not_share_a_counter(play) -> None:
    one, other = await play(ROW), await play(ROW)
    await one.call("increment_counter", count=3)
    assert (await one.reward(), await other.reward()) == (1.0, 0.0)


async def test_a_row_without_a_start_starts_at_zero(play) -> None:
    game = await play({"expected_count": 2})
    await game.call("increment_counter", count=2)
    assert await game.reward() == 1.0


async def test_an_absurd_amount_is_refused_and_changes_nothing(play) -> None:
    game = await play(ROW)
    assert "stays between" in await game.call("increment_counter", count=10**400)
    assert await game.call("get_counter_value") == {"count": 3}


@pytest.mark.parametrize("count", ["2", 1.5, None, True])
async def test_an_amount_that_is_no_whole_number_is_explained_or_taken_for_what_it_says(play, count) -> None:
    game = await play(ROW)
    answer = await game.call("increment_counter", count=count)
    value = await game.call("get_counter_value")
    assert answer == {"success": True} or (isinstance(answer, str) and value == {"count": 3})


@pytest.mark.parametrize("expected", [None, "6", 6.0, True])
async def test_a_row_without_a_whole_expected_number_is_an_error_not_a_reward(play, expected) -> None:
    game = await play({"initial_count": 1, "expected_count": expected})
    with pytest.raises(ValueError, match="expected_count must be a whole number"):
        await game.reward()


def test_another_seed_gives_other_tasks(generate) -> None:
    assert generate.rows(1, 3) == generate.rows(1, 3) != generate.rows(2, 3)
