"""Strict JSON: nothing is read or written that others could not read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from gymbox.models.strict_json import DEEPEST, json_bytes, strict_json
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_what_is_read(value):
    assert strict_json(json_bytes(value)) == value
    assert json.loads(json_bytes(value)) == value
    assert strict_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": Infinity}', "[-Infinity]", "", "{", '{"a": 1} x', '"line\nend"', b'"\xff"']
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        strict_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('{"a": "é"}'.encode("utf-16"), {"a": "é"}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud800"', "\ud800"),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b"-0.0", -0.0),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_what_python_reads_is_read(text, value):
    assert strict_json(text) == value


def test_deep_nesting_is_told_as_such():
    with pytest.raises(RecursionError):
        strict_json("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize("inner", ["1", '"\\ud800"'])
def test_what_is_read_can_be_written(inner):
    deepest = strict_json("[" * DEEPEST + inner + "]" * DEEPEST)
    assert json_bytes(deepest).startswith(b"[[")
    with pytest.raises(RecursionError, match="more than"):
        strict_json("[" * 2 * DEEPEST + inner + "]" * 2 * DEEPEST)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, [-math.inf]])
def test_what_json_cannot_say_is_not_written(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(value)


def test_what_holds_itself_is_not_written():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError):
        json_bytes(value)


@pytest.mark.parametrize("text", ["NaN", "to Infinity and beyond"])
def test_the_names_of_such_numbers_may_stand_in_texts(text):
    assert json_bytes({"é": text}) == f'{{"é":"{text}"}}'.encode()


def test_half_a_surrogate_pair_is_written_as_a_question_mark():
    assert json_bytes({"a": "x\ud800y"}) == b'{"a":"x?y"}'


def test_half_a_surrogate_pair_may_stand_in_a_text_that_is_read():
    assert strict_json('{"a": "\ud800"}') == {"a": "\ud800"}
