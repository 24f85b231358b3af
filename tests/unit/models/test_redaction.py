"""Secrets are found by their value, however they are written."""

import base64
import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from gymbox.redaction import Redaction
from hypothesis import given
from hypothesis import strategies as st

SECRET = 'sécret "key"/with+all&kinds\\of=it'
FORMS = [
    SECRET,
    json.dumps(SECRET)[1:-1],
    json.dumps(SECRET, ensure_ascii=False)[1:-1],
    json.dumps({"inner": json.dumps({"key": SECRET})}),
    quote(SECRET),
    quote(SECRET, safe=""),
    quote_plus(SECRET),
    SECRET.encode().hex(),
    base64.b64encode(SECRET.encode()).decode(),
    base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_however_it_is_written(form: str) -> None:
    redaction = Redaction([SECRET])
    assert redaction.is_in(f"before {form} after")
    text = redaction.text(f"before {form} after")
    assert "[redacted " in text and text.startswith("before ") and text.endswith(" after")


@given(st.binary(max_size=7), st.binary(max_size=7))
def test_a_secret_is_found_in_base64_wherever_it_begins(before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + b"a-secret-of-some-length" + after).decode()
    assert Redaction(["a-secret-of-some-length"]).is_in(encoded)


def test_values_keep_their_shape_and_lose_secrets_in_keys_too() -> None:
    redaction = Redaction(["hunter2!"])
    value: dict[str, Any] = {"a": ["x hunter2!", 1, None, [2, 3]], "hunter2!": {"b": True}}
    clean = redaction.value(value)
    assert "hunter2!" not in json.dumps(clean)
    assert clean["a"][1:] == [1, None, [2, 3]] and list(clean.values())[1] == {"b": True}


def test_the_same_secret_has_the_same_mark_and_another_has_another() -> None:
    redaction = Redaction(["secret-one", "secret-two"])
    one, again, two = (redaction.text(text) for text in ("secret-one", "secret-one", "secret-two"))
    assert one == again != two


def test_short_values_and_no_values_leave_everything_as_it_is() -> None:
    assert Redaction(["EMPTY"]).value({"text": "EMPTY"}) == {"text": "EMPTY"}
    assert not Redaction([]).is_in("anything")


def test_a_secret_in_the_pieces_of_a_stream_is_seen() -> None:
    redaction = Redaction(["secret-value"])
    pieces = [{"type": "d", "output_index": 0, "delta": part} for part in ("a sec", "ret-va", "lue b")]
    assert redaction.is_in_texts_of(pieces)
    between = {"type": "d", "output_index": 1, "delta": "other"}
    assert redaction.is_in_texts_of([pieces[0], between, *pieces[1:]])
    assert not redaction.is_in_texts_of([pieces[0], between])
