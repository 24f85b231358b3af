"""Pairs of rollouts of the same prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.exports.dpo import DpoChoice, DpoForm, Pairing, export_dpo
from gymbox.exports.left_out import Reason
from gymbox.exports.training_rows import Exported

from tests.unit.exports.conftest import answered, called, ids, lines_in, result, said

Run = Callable[..., Path]


def exported(run: Path, to: Path, **choice: Any) -> Exported:
    return export_dpo([RunReader(run)], to, DpoChoice(**choice))


def scores(path: Path) -> list[tuple[float, float]]:
    rows = lines_in(path)
    path.unlink()
    return [(row["score_chosen"], row["score_rejected"]) for row in rows]


@pytest.fixture
def graded(run: Run) -> Path:
    """A task with rewards from 0 to 1, one of which nobody can be paired with in the other task."""
    rewards = [0.5, 1.0, 0.0, 0.3]
    of_a = [answered("a", repeat, reward, said(f"{repeat}")) for repeat, reward in enumerate(rewards)]
    return run(*of_a, answered("b", 0, 1.0, said("alone")), answered("b", 1, None), repeats=4)


def test_the_best_and_the_worst_of_a_prompt_make_a_pair(graded: Path, tmp_path: Path) -> None:
    found = exported(graded, tmp_path / "dpo.jsonl")
    assert lines_in(tmp_path / "dpo.jsonl") == [
        {
            "prompt": [{"role": "user", "content": "do a"}],
            "chosen": [{"role": "assistant", "content": "1"}],
            "rejected": [{"role": "assistant", "content": "2"}],
            "tools": None,
            "environment": "counter",
            "task": "a",
            "chosen_rollout": "counter-a-1",
            "rejected_rollout": "counter-a-2",
            "score_chosen": 1.0,
            "score_rejected": 0.0,
        }
    ]
    assert (found.rollouts, found.used) == (6, 2)
    assert found.left_out.counts == {Reason.NOT_PAIRED: 3, Reason.ERROR: 1}


def test_all_pairs_that_differ_enough_come_with_the_widest_first(graded: Path, tmp_path: Path) -> None:
    path = tmp_path / "dpo.jsonl"
    exported(graded, path, pairs=Pairing.ALL)
    assert scores(path) == [(1.0, 0.0), (1.0, 0.3), (1.0, 0.5), (0.5, 0.0), (0.3, 0.0), (0.5, 0.3)]
    exported(graded, path, pairs=Pairing.ALL, margin=0.5)
    assert scores(path) == [(1.0, 0.0), (1.0, 0.3), (1.0, 0.5), (0.5, 0.0)]
    exported(graded, path, pairs=Pairing.ALL, per_prompt=2)
    assert scores(path) == [(1.0, 0.0), (1.0, 0.3)]


def test_a_margin_is_not_missed_by_a_rounding(run: Run, tmp_path: Path) -> None:
    folder = run(answered("a", 0, 0.3, said("x")), answered("a", 1, 0.2, said("y")), repeats=2)
    assert exported(folder, tmp_path / "dpo.jsonl", margin=0.1).used == 2


def test_pairs_by_chance_hang_on_the_seed_alone(graded: Path, tmp_path: Path) -> None:
    path = tmp_path / "dpo.jsonl"

    def drawn(seed: int) -> list[tuple[float, float]]:
        exported(graded, path, pairs=Pairing.RANDOM, seed=seed, per_prompt=2)
        return scores(path)

    assert all(len(drawn(seed)) == 2 for seed in range(3)) and drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1
    exported(graded, path, pairs=Pairing.RANDOM)
    assert len(scores(path)) == 1


def test_only_those_that_were_asked_the_very_same_are_paired(run: Run, tmp_path: Path) -> None:
    other = answered("a", 1, 0.0, said("no")) | {"responses_create_params": {"input": "do it otherwise"}}
    folder = run(answered("a", 0, 1.0, said("yes")), other, repeats=2)
    with pytest.raises(ConfigError, match="not_paired 2"):
        exported(folder, tmp_path / "dpo.jsonl")
    tools = answered("a", 1, 0.0, said("no"), response={"tools": [{"type": "function", "name": "f"}]})
    with pytest.raises(ConfigError, match="not_paired 2"):
        exported(run(answered("a", 0, 1.0, said("yes")), tools, repeats=2, name="tools"), tmp_path / "dpo.jsonl")


def test_one_answer_with_two_rewards_is_no_pair(run: Run, tmp_path: Path) -> None:
    folder = run(answered("a", 0, 1.0, said("x")), answered("a", 1, 0.0, said("x")), repeats=2)
    with pytest.raises(ConfigError, match="not_paired 2"):
        exported(folder, tmp_path / "dpo.jsonl")


def test_tokens_are_of_rollouts_with_one_answer_to_the_same_tokens(run: Run, tmp_path: Path) -> None:
    turns = [called(**ids([1, 2], 3)), result(), said("2", **ids([1, 2, 3, 4], 5))]
    folder = run(
        answered("a", 0, 1.0, said("x", **ids([1, 2], 3, 4))),
        answered("a", 1, 0.0, said("y", **ids([1, 2], 5))),
        answered("a", 2, 0.0, said("z", **ids([9, 2], 5))),
        answered("a", 3, 0.0, *turns),
        repeats=4,
    )
    found = exported(folder, tmp_path / "dpo.jsonl", form=DpoForm.TOKENS)
    [row] = lines_in(tmp_path / "dpo.jsonl")
    assert (row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) == ([1, 2], [3, 4], [5])
    assert found.left_out.counts == {Reason.NOT_PAIRED: 1, Reason.SEVERAL_TURNS: 1}
    with pytest.raises(ConfigError, match="masked"):
        exported(folder, tmp_path / "t.jsonl", form=DpoForm.TOKENS, masked=True)


def test_masked_rollouts_are_no_half_of_a_pair(run: Run, tmp_path: Path) -> None:
    folder = run(
        answered("a", 0, 1.0, said("x"), mask_sample=True, mask_reason="drift"),
        answered("a", 1, 0.0, said("y")),
        repeats=2,
    )
    with pytest.raises(ConfigError, match="masked 1"):
        exported(folder, tmp_path / "dpo.jsonl")
    assert exported(folder, tmp_path / "dpo.jsonl", masked=True).used == 2
