from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.dataset import Dataset, open_datasets
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.faults import SHOWN_FAULTS
from gymbox.row_check import is_plain_message
from gymbox_sandbox.responses import ResponsesParams
from hypothesis import given
from hypothesis import strategies as st

GOOD: dict[str, Any] = {"responses_create_params": {"input": [{"role": "user", "content": "count"}]}}
Write = Callable[..., Environment]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """An environment whose dataset holds the given lines."""

    def environment(
        *lines: bytes | dict[str, Any], name: str = "counter", end: bytes = b"\n", **manifest: Any
    ) -> Environment:
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "x", **manifest}))
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (folder / "data" / "example.jsonl").write_bytes(b"".join(line + end for line in encoded))
        return Environment.load(folder)

    return environment


def opened(environment: Environment) -> Dataset:
    [dataset] = open_datasets([environment])
    return dataset


def faults(environment: Environment) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        open_datasets([environment])
    return [line.strip().removeprefix(f"{environment.dataset}:") for line in str(caught.value).splitlines()[1:]]


def test_a_row_is_read_as_it_stands(write: Write) -> None:
    dataset = opened(write({**GOOD, "id": "a", "initial_count": 3}, {**GOOD, "id": 7}))

    assert len(dataset) == 2
    assert dataset[0].fields["initial_count"] == 3
    assert [dataset[1].id, dataset[1].fields["id"], dataset[1].index] == ["7", "7", 1]


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b"])
def test_only_the_newline_byte_ends_a_row(write: Write, text: str) -> None:
    row = {"responses_create_params": {"input": f"before{text}after"}}
    dataset = opened(write(json.dumps(row, ensure_ascii=False).encode()))

    assert len(dataset) == 1
    assert dataset[0].fields["responses_create_params"]["input"] == f"before{text}after"


def test_windows_line_ends_blank_lines_and_a_missing_last_newline_are_fine(write: Write) -> None:
    environment = write(GOOD, b"", GOOD, b"  ", end=b"\r\n")
    environment.dataset.write_bytes(environment.dataset.read_bytes() + json.dumps(GOOD).encode())

    assert [opened(environment)[index].index for index in range(3)] == [0, 1, 2]


def test_rows_without_an_id_get_a_stable_one_and_identical_rows_differ(write: Write) -> None:
    environment = write(GOOD, GOOD)
    first, again = opened(environment), opened(environment)

    assert first[0].id == again[0].id
    assert first[0].id != first[1].id


def test_the_digest_is_of_the_whole_file(write: Write) -> None:
    import hashlib

    environment = write(GOOD, b"", {**GOOD, "x": 1})

    assert opened(environment).sha256 == hashlib.sha256(environment.dataset.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{'a': 1}", "1: (row): is not JSON: key must be a string at column 2"),
        (b'{"a": 1', "1: (row): ends in the middle of a JSON value"),
        (b'{"a": "text, "b": 1', "1: (row): is not JSON: expected `,` or `}` at column 15; mend it at that column"),
        (b'{"a": "text', "1: (row): ends in the middle of a JSON value"),
        (b'{"e": 1, "a": }', "1: (row): is not JSON: expected value at column 15; mend it at that column"),
        (b'{"e": "NaN", "a": 01}', "1: (row): is not JSON: invalid number at column 20"),
        (b'{"a": 1}{"a": 2}', "1: (row): holds more than one JSON value; put each row on a line of its own"),
        (b"[1]", "1: (row): is a list, not an object"),
        (b"null", "1: (row): is null, not an object"),
        (b'{"a": NaN}', "1: (row): holds NaN, Infinity or a number too large"),
        (b'{"a": -Infinity}', "1: (row): holds NaN, Infinity or a number too large"),
        (b'{"a": 1e999}', "1: (row): holds NaN, Infinity or a number too large"),
        (b'{"a": "\\ud800"}', "1: (row): holds half a surrogate pair"),
        (b'{"a": "\xff"}', "1: (row): is not JSON: invalid unicode"),
        (b"\xef\xbb\xbf{}", "1: (row): starts with a byte order mark; save the file as UTF-8 without BOM"),
        ("{}".encode("utf-16"), "1: (row): starts with a byte order mark"),
        (b"[" * 300 + b"]" * 300, "1: (row): is nested too deeply"),
    ],
)
def test_a_line_that_is_no_json_object_is_named_with_a_remedy(write: Write, line: bytes, said: str) -> None:
    assert faults(write(line))[0].startswith(said)


def row(**params: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "x", **params}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({}, "responses_create_params: missing; add it"),
        ({"responses_create_params": []}, "responses_create_params: is a list, not an object"),
        (
            {"response_create_params": {}},
            "response_create_params: unknown field; did you mean 'responses_create_params'?",
        ),
        ({**GOOD, "verifier_metdata": {}}, "verifier_metdata: unknown field; did you mean 'verifier_metadata'?"),
        ({**GOOD, "expected-count": 3}, "expected-count: unknown field; did you mean 'expected_count'?"),
        ({**GOOD, "verifier_metadata": []}, "verifier_metadata: is a list, not an object"),
        ({**GOOD, "id": ""}, "id: is an empty text; use a text or a whole number"),
        ({**GOOD, "id": None}, "id: is null; use a text or a whole number"),
        ({**GOOD, "id": True}, "id: is a boolean"),
        ({**GOOD, "id": 1.5}, "id: is a number"),
        ({"responses_create_params": {}}, "responses_create_params.input: missing or empty; put the messages"),
        (
            {"responses_create_params": {"inputs": "x"}},
            "responses_create_params.input: missing or empty; rename 'inputs'",
        ),
        (row(input=3), "responses_create_params.input: is a number; write a text or a list of items"),
        (
            row(input=[{"role": "user"}, {"role": "boss"}]),
            "responses_create_params.input[1].role: Input should be",
        ),
        (
            row(input=[{"type": "function_call", "name": "f"}]),
            "responses_create_params.input[0].call_id: Field",
        ),
        (row(temperature="hot"), "responses_create_params.temperature: Input should be a valid number"),
        (row(temprature=1), "responses_create_params.temprature: unknown field; did you mean 'temperature'?"),
        (row(tols=[]), "responses_create_params.tols: unknown field; did you mean 'tools'?"),
        (row(top_logprob=1), "responses_create_params.top_logprob: unknown field; did you mean 'top_logprobs'?"),
        ({**GOOD, "gold_reply": []}, "gold_reply: unknown field; did you mean 'gold_replies'?"),
        (row(tools={}), "responses_create_params.tools: Input should be a valid list"),
        (row(tools=[{"type": "function"}]), "responses_create_params.tools[0].name: missing or no text"),
        (row(tools=[{"name": "f", "parameters": []}]), "responses_create_params.tools[0].parameters: is a list"),
        (row(tools=[{"name": "a b"}]), "responses_create_params.tools[0].name: 'a b' is no tool name"),
        (row(tools=[{"name": "f"}, {"name": "f"}]), "responses_create_params.tools[1].name: 'f' is defined twice"),
        (
            row(tools=[{"type": "function", "function": {}}]),
            "responses_create_params.tools[0]: is in the Chat Completions form",
        ),
        ({**GOOD, "gold_replies": [{}]}, "gold_replies[0]: Input should be a valid list"),
    ],
)
def test_a_faulty_field_is_named_with_reason_and_remedy(write: Write, line: dict[str, Any], said: str) -> None:
    found = faults(write(GOOD, line, hidden_fields=["expected_count"]))

    assert [fault for fault in found if fault.startswith(f"2: {said}")], found


def test_a_wrong_input_is_told_once_and_item_by_item(write: Write) -> None:
    assert len(faults(write(row(input=[{"role": "user"}, {"role": "boss"}, 3])))) == 2


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"role": "user", "content": 3}, ".content: Input should be a valid string or a valid list"),
        ({"role": "user", "content": [3]}, ".content[0]: Input should be a valid dictionary"),
        (3, ": Input should be a valid dictionary"),
        ({"role": "tool", "content": "x"}, ": a message of role 'tool' needs its tool_call_id"),
    ],
)
def test_each_wrong_item_is_one_sentence_in_the_words_of_the_row(write: Write, item: Any, said: str) -> None:
    good = {"role": "tool", "tool_call_id": "c", "content": "of the Chat API"}
    remedy = 'write items such as {"role": "user", "content": "…"}'

    assert faults(write(row(input=[good, item]))) == [f"1: responses_create_params.input[1]{said}; {remedy}"]


@pytest.mark.parametrize("role", [[], {}, [["user"]], None, 3])
def test_a_role_of_any_kind_is_a_fault_and_no_crash(write: Write, role: Any) -> None:
    (fault,) = faults(write(row(input=[{"role": role, "content": "x"}])))
    assert "input[0].role: Input should be 'user', 'assistant', 'system' or 'developer'" in fault


def test_settings_that_only_some_engines_know_pass(write: Write) -> None:
    extras = {"top_k": 1, "min_p": 0, "seed": 1, "logprobs": 1, "max_tokens": 9, "chat_template_kwargs": {}}

    assert len(opened(write(row(temperature=1, top_p=1, **extras)))) == 1


def test_tools_that_are_no_functions_pass(write: Write) -> None:
    assert len(opened(write(row(tools=[{"type": "web_search"}, {"type": "function", "name": "f"}])))) == 1


def test_free_fields_pass_even_when_they_look_like_known_ones_that_are_there(write: Write) -> None:
    assert len(opened(write({**GOOD, "verifier_metadata": {}, "verifier_metadatas": 1, "anything": None}))) == 1


def test_an_id_that_stands_twice_is_a_fault_also_as_text_and_number(write: Write) -> None:
    assert faults(write({**GOOD, "id": 1}, GOOD, {**GOOD, "id": "1"})) == [
        "3: id: '1' stands in line 1 already; give each row an id of its own, or none"
    ]


def test_all_faults_of_all_datasets_are_told_at_once_and_capped(write: Write) -> None:
    first = write(*[b"{"] * (SHOWN_FAULTS + 4), name="first")
    second = write(b"[]", name="second")

    with pytest.raises(ConfigError) as caught:
        open_datasets([first, second])

    text = str(caught.value)
    assert text.startswith(f"{SHOWN_FAULTS + 5} faults in the dataset, so nothing was started:")
    assert text.count("first") == SHOWN_FAULTS and text.endswith("… and 5 more")


def test_an_empty_dataset_is_a_fault(write: Write) -> None:
    assert faults(write()) == ["1: (file): holds no rows; write one JSON object a line"]


def test_a_dataset_that_cannot_be_read_is_told(write: Write) -> None:
    environment = write(GOOD, dataset="data/none.jsonl")

    with pytest.raises(ConfigError, match=r"'counter': cannot read its dataset .*none.jsonl: No such file"):
        open_datasets([environment])


def test_a_row_beyond_the_size_cap_is_a_fault_and_the_next_row_is_still_read(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymbox.row_check.MAX_ROW_BYTES", 100)

    found = faults(write(GOOD, {**GOOD, "x": "y" * 350}, b"[]"))

    assert [fault.split(";")[0] for fault in found] == [
        "2: (row): is longer than 0 MiB",
        "3: (row): is a list, not an object",
    ]


def test_a_file_that_changes_after_the_check_is_refused(write: Write) -> None:
    environment = write(GOOD, GOOD)
    dataset = opened(environment)
    environment.dataset.write_bytes(environment.dataset.read_bytes() + b"\n")

    with pytest.raises(ConfigError, match="was changed while it was in use"):
        dataset[1]


def test_a_closed_dataset_lets_go_of_its_file(write: Write) -> None:
    dataset = opened(write(GOOD))
    dataset.close()

    with pytest.raises(ValueError, match="closed file"):
        dataset[0]


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["message", "other", None]),
                "role": st.sampled_from(["user", "tool", "system", None, []]),
                "content": st.one_of(st.text(max_size=3), st.none(), st.just([])),
                "id": st.just("m"),
            },
        ),
        min_size=1,
    )
)
def test_what_passes_as_plain_messages_is_right(items: list[dict[str, Any]]) -> None:
    if all(is_plain_message(item) for item in items):
        ResponsesParams.model_validate({"input": items})
