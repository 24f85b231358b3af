from __future__ import annotations

from gymbox.datasets.overlap import BOILERPLATE, Duplicates, contamination
from gymbox.datasets.sources import Source
from gymbox.datasets.statistics import Statistics
from gymbox.datasets.texts import exact_digest, ngrams, normalised_digest, prompt_text

from tests.unit.datasets.conftest import Rows, task

TEN = "the quick brown fox jumps over a very lazy dog"


def test_ids_and_the_order_of_fields_do_not_make_rows_differ() -> None:
    one, other = {"id": 1, **task("x", a=1, b=2)}, {**task("x", b=2, a=1), "_ng_task_index": 3}
    assert exact_digest(one) == exact_digest(other)
    assert exact_digest(one) != exact_digest(task("x", a=1, b=3))


def test_case_white_space_and_forms_of_unicode_are_normalised_away() -> None:
    assert normalised_digest(task("ﬁne  \n CAFÉ", a=["X"])) == normalised_digest(task("Fine cafe\u0301 ", a=["x"]))
    assert normalised_digest(task("fine")) != normalised_digest(task("fin e"))


def test_the_prompt_is_what_the_user_says() -> None:
    parts = [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "…"}]
    items = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": parts}]
    assert prompt_text({"responses_create_params": {"input": items}}) == "a\nb"
    assert prompt_text({"responses_create_params": {"input": "c"}}) == "c"
    assert prompt_text({}) == prompt_text({"responses_create_params": {"input": 3}}) == ""


def test_ngrams_are_of_words_and_each_counts_once() -> None:
    assert len(ngrams(TEN, 8)) == 3
    assert ngrams(TEN.upper() + "!", 8) == ngrams(TEN, 8)
    assert len(ngrams("a b a b a b", 2)) == 2
    assert not len(ngrams("too short", 8))


def test_every_row_that_is_the_same_is_counted_and_the_first_are_named() -> None:
    found = Duplicates()
    assert found.add(task("x"), "f:1") == set()
    assert found.add(task("X"), "f:2") == {"normalised", "prompt"}
    assert found.add(task("x"), "f:3") == {"exact", "normalised", "prompt"}
    assert found.add(task("x", answer=1), "f:4") == {"prompt"}
    assert found.add({"responses_create_params": {"input": []}}, "f:5") == set()
    assert found.as_json() == {
        "exact": {"rows": 1, "first": [("f:3", "f:1")]},
        "normalised": {"rows": 2, "first": [("f:2", "f:1"), ("f:3", "f:1")]},
        "prompt": {"rows": 3, "first": [("f:2", "f:1"), ("f:3", "f:1"), ("f:4", "f:1")]},
    }


def test_the_share_of_ngrams_is_what_the_formula_says(rows: Rows) -> None:
    reference = rows(task(f"{TEN} and more"), task("short"), name="train.jsonl")
    # 8-grams of 13 words: 6, of which the 3 within TEN stand in the reference
    half = task(f"{TEN} but then another")
    evaluated = rows(half, task(TEN), task("SHORT"), task("other"), name="test.jsonl")
    found = contamination(Source(str(evaluated)), Source(str(reference)), threshold=0.5)
    assert found.first == ((1, 0.5), (2, 1.0), (3, 1.0))
    assert (found.rows, found.prompts, found.overlapping, found.contaminated, found.too_short) == (4, 1, 2, 3, 2)
    assert contamination(Source(str(evaluated)), Source(str(reference))).first == ((2, 1.0), (3, 1.0))
    assert "8-grams" in found.as_json()["formula"]


def test_phrases_that_many_rows_have_in_common_do_not_count(rows: Rows) -> None:
    reference = rows(*(task(f"{TEN} {number}") for number in range(BOILERPLATE + 1)), name="train.jsonl")
    evaluated = rows(task(f"{TEN} hundred"), task(TEN), name="test.jsonl")
    assert contamination(Source(str(evaluated)), Source(str(reference))).contaminated == 0


def test_statistics_count_what_is_there() -> None:
    found = Statistics()
    assert found.as_json()["messages"] == {}
    tools = [{"type": "function", "name": "add"}]
    found.add({"responses_create_params": {"input": "a b c", "tools": tools}, "agent_ref": {"name": "x"}}, "f:1")
    found.add({**task("d"), "answer": None}, "f:2")
    told = found.as_json()
    assert told["rows"] == 2
    assert told["fields"]["answer"] == {"rows": 1, "kinds": {"null": 1}}
    assert told["roles"] == {"user": 2} and told["tools"] == {"add": 1} and told["agents"] == {"x": 1}
    assert told["prompt_words"] == {"min": 1, "median": 1, "p95": 3, "max": 3, "mean": 2.0}
    assert told["tools_per_row"]["mean"] == 0.5
