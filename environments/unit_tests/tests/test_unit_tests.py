"""Hidden tests: right answers score however they are handed in, wrong ones and forged ones never."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gymbox_sandbox.untrusted import decode, same

HERE = Path(__file__).resolve().parent


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"unit_tests_{path.stem}", path)
    loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


forgeries = module(HERE / "forgeries.py")
server = module(HERE.parent / "server.py")
MUTANTS = module(HERE / "mutants.py").MUTANTS
ROWS = {
    row["verifier_metadata"]["function"]: row
    for row in map(json.loads, (HERE.parent / "data" / "example.jsonl").read_bytes().splitlines())
}

FENCED = "Here it is:\n```python\n{}```\nIt adds."


async def test_every_gold_run_scores(play, rows) -> None:
    assert len(rows) >= 20
    for row in rows:
        game = await play(row)
        await game.gold()
        verdict = await game.verdict()
        assert (verdict.reward, verdict.metrics["passed"]) == (1.0, verdict.metrics["total"]), row["id"]


async def test_a_function_that_returns_nothing_never_scores(play, rows) -> None:
    for row in rows:
        game = await play(row)
        game.say(FENCED.format(f"def {row['verifier_metadata']['function']}(*_):\n    return 0.5\n"))
        assert await game.reward() == 0.0, row["id"]


def function(source: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace[name]


def passes(hidden: Any, right: Any, wrong: Any, source: str) -> bool:
    """Whether `wrong`, a function of this file's making, passes every test that the answer `source` would get."""
    tests = [(case.args, decode(case.expected)) for case in hidden.cases]
    tests += [(args, right(*decode(args))) for args in server.drawn_inputs(hidden.fresh, source)]
    for args, expected in tests:
        try:
            if not same(expected, wrong(*decode(args)), tolerance=hidden.tolerance):
                return False
        except Exception:
            return False
    return True


@pytest.mark.parametrize("name", ROWS)
def test_a_plausible_but_wrong_solution_never_passes_whatever_is_drawn(name) -> None:
    hidden = server.Hidden.model_validate(ROWS[name]["verifier_metadata"])
    reference = hidden.fresh.reference
    right = function(reference, name)
    assert passes(hidden, right, right, reference)
    assert len(MUTANTS[name]) >= 3
    for old, new in MUTANTS[name]:
        assert old in reference
        # it knows the fixed tests by heart, so that only what is drawn can tell
        known = {repr(decode(case.args)): decode(case.expected) for case in hidden.cases}
        mutant = function(reference.replace(old, new, 1), name)

        def wrong(*args: Any, known: Any = known, mutant: Any = mutant) -> Any:
            return known[repr(list(args))] if repr(list(args)) in known else mutant(*args)

        assert not any(passes(hidden, right, wrong, f"{new} # {nonce}") for nonce in range(20)), (old, new)


async def test_a_wrong_answer_that_was_varied_until_few_tests_told_does_not_score(play) -> None:
    wrong = (
        "def is_palindrome(text):\n"
        "    # {}\n"
        "    kept = [character for character in text if character.isalnum()]\n"
        "    return len(kept) < 2 or text.startswith('Never odd')\n"
    )
    row = ROWS["is_palindrome"]
    fresh = server.Hidden.model_validate(row["verifier_metadata"]).fresh
    right = function(fresh.reference, "is_palindrome")
    loaded = function(wrong, "is_palindrome")

    def told(nonce: int) -> int:
        return sum(right(*args) != loaded(*args) for args in server.drawn_inputs(fresh, wrong.format(nonce)))

    game = await play(row)
    game.say(FENCED.format(wrong.format(min(range(200), key=told))))
    assert await game.reward() == 0.0


async def test_a_submitted_answer_counts_where_the_last_message_has_none(play) -> None:
    game = await play(forgeries.ROW)
    assert await game.call("submit", code=forgeries.WRONG) == "Submitted."
    await game.call("submit", code=forgeries.RIGHT)
    game.say("I have submitted it.")
    assert (await game.verdict()).metrics == {"passed": 12, "total": 12}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (FENCED.format(forgeries.RIGHT), 1.0),
        (f"```\n{forgeries.RIGHT}```", 1.0),
        (f"```py title=x\n{forgeries.RIGHT}\n```", 1.0),
        (f"```python\n{forgeries.RIGHT}```\nUse it:\n```python\nprint(add(1, 2))\n```", 1.0),
        (f"```python\n{forgeries.WRONG}```\nNo, rather:\n```python\n{forgeries.RIGHT}```", 1.0),
        (f"```python\n{forgeries.RIGHT}```\nNo, rather:\n```python\n{forgeries.WRONG}```", 0.0),
        ("```python\nadd = lambda a, b: a + b\n```", 1.0),
        (f"1. Like so:\n   ```python\n{forgeries.RIGHT}   ```", 1.0),
        (forgeries.RIGHT, 0.0),
        ("```python\ndef added(a, b):\n    return a + b\n```", 0.0),
        ("", 0.0),
    ],
)
async def test_the_answer_is_the_last_fenced_block_that_defines_the_function(play, text, reward) -> None:
    game = await play(forgeries.ROW)
    game.say(text)
    assert await game.reward() == reward


async def test_without_an_answer_nothing_of_all_tests_has_passed(play) -> None:
    game = await play(forgeries.ROW)
    assert (await game.verdict()).metrics == {"passed": 0, "total": 12}


@pytest.mark.parametrize("name", [*forgeries.ANSWERS, *forgeries.READS])
async def test_a_forgery_does_not_score(play, name) -> None:
    if name == "reads other processes' memory":
        pytest.skip("here the server is the test's own process; tests/conformance runs it in a sandbox")
    game = await play(forgeries.ROW)
    game.say(FENCED.format({**forgeries.ANSWERS, **forgeries.READS}[name] + "\n"))
    assert await game.reward() == 0.0


async def test_a_wrong_reference_is_an_error_not_a_reward(play) -> None:
    fresh = {**forgeries.ROW["verifier_metadata"]["fresh"], "reference": "def add(a, b):\n    raise KeyError('x')\n"}
    game = await play({**forgeries.ROW, "verifier_metadata": {**forgeries.ROW["verifier_metadata"], "fresh": fresh}})
    game.say(FENCED.format(forgeries.RIGHT))
    with pytest.raises(RuntimeError, match="the reference fails"):
        await game.reward()


@pytest.mark.parametrize("specification", [{"int": 3}, {"date": []}, {"list": {"int": [0, 1]}}])
async def test_a_row_that_draws_what_does_not_exist_is_an_error_not_a_reward(play, specification) -> None:
    fresh = {**forgeries.ROW["verifier_metadata"]["fresh"], "inputs": [specification]}
    game = await play({**forgeries.ROW, "verifier_metadata": {**forgeries.ROW["verifier_metadata"], "fresh": fresh}})
    game.say(FENCED.format(forgeries.RIGHT))
    with pytest.raises(ValueError, match="specifies no random value"):
        await game.reward()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print(1 + 1)", "2\n"),
        ("", "[no output]"),
        (
            "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)",
            "out\n\n[stderr]\nerr\n\n[exit code 3]",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "[signal 9]"),
    ],
)
async def test_the_model_reads_what_its_program_printed_and_how_it_ended(play, code, shown) -> None:
    assert await (await play(forgeries.ROW)).call("run_python", code=code) == shown


async def test_a_long_output_is_shown_by_its_ends(play) -> None:
    text = await (await play(forgeries.ROW)).call("run_python", code="print('a' * 9000 + 'z')")
    assert text.startswith("aaaa") and text.endswith("az\n") and "left out" in text and len(text) < 8200


def test_another_seed_draws_other_tests_of_the_same_problems(generate) -> None:
    one, other = generate.rows("1")[0], generate.rows("2")[0]
    assert one["id"] == other["id"]
    assert one["verifier_metadata"]["fresh"]["seed"] != other["verifier_metadata"]["fresh"]["seed"]
