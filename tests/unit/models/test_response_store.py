"""The store behind `previous_response_id`: what is kept, for whom, and for how long."""

import json
from typing import Any

import pytest
from gymbox.errors import Conflict, Invalid, NotFound
from gymbox.models.response_store import ResponseStore, StoreLimits, scope_of
from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Message, ResponsesParams
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def said(text: str, identity: str = "r") -> bytes:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    return json.dumps({"id": identity, "output": [message]}).encode()


def asked(given: Any) -> bytes:
    return json.dumps({"input": given}).encode()


def params(previous: Any, given: Any = "and now?") -> ResponsesParams:
    return ResponsesParams.model_validate({"input": given, "previous_response_id": previous, "temperature": 0.5})


def texts(found: ResponsesParams) -> list[str]:
    return [item.text for item in found.items if isinstance(item, Message)]


def test_a_request_goes_on_from_the_whole_history_before_it() -> None:
    store = ResponseStore()
    store.keep("s", "r1", asked("one"), said("1"))
    store.keep("s", "r2", asked([{"role": "user", "content": "two"}]), said("2"), previous="r1")
    found = store.expanded("s", params("r2"))
    assert texts(found) == ["one", "1", "two", "2", "and now?"]
    assert found.dump()["temperature"] == 0.5
    assert "previous_response_id" not in found.dump()


def test_calls_of_the_answer_meet_their_results() -> None:
    store = ResponseStore()
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    store.keep("s", "r", asked("go"), json.dumps({"id": "r", "output": [call]}).encode())
    result = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    found = store.expanded("s", params("r", [result]))
    assert [type(item) for item in found.items] == [Message, FunctionCall, FunctionCallOutput]


def test_two_requests_may_go_on_from_one_answer() -> None:
    store = ResponseStore()
    store.keep("s", "r", asked("one"), said("1"))
    store.keep("s", "a", asked("left"), said("a"), previous="r")
    store.keep("s", "b", asked("right"), said("b"), previous="r")
    assert texts(store.expanded("s", params("a"))) == ["one", "1", "left", "a", "and now?"]
    assert texts(store.expanded("s", params("b"))) == ["one", "1", "right", "b", "and now?"]


def test_without_a_previous_response_nothing_changes() -> None:
    given = ResponsesParams.model_validate({"input": "x"})
    assert ResponseStore().expanded("s", given) is given


def test_another_caller_or_rollout_cannot_read_it() -> None:
    store = ResponseStore()
    mine = scope_of("Bearer a", "", "r1")
    store.keep(mine, "r", asked("secret"), said("1"))
    for scope in (scope_of("Bearer b", "", "r1"), scope_of("Bearer a", "", "r2"), scope_of("", "", "")):
        with pytest.raises(NotFound):
            store.answer(scope, "r")
        with pytest.raises(NotFound):
            store.expanded(scope, params("r"))
        with pytest.raises(NotFound):
            store.forget(scope, "r")
    assert store.answer(mine, "r") == said("1")


def test_an_unknown_id_is_answered_with_the_bounds() -> None:
    store = ResponseStore(StoreLimits(count=7, megabytes=2, seconds=60))
    with pytest.raises(NotFound, match=r"'nope'.* 60 s .*at most 7 of them and 2 MB.*own caller") as failure:
        store.expanded("s", params("nope"))
    assert failure.value.extra == {"code": "previous_response_not_found"}


def test_an_id_that_is_no_string_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="previous_response_id"):
        ResponseStore().expanded("s", params(3))


def test_what_is_not_used_for_too_long_is_gone() -> None:
    clock = Clock()
    store = ResponseStore(StoreLimits(seconds=10), clock)
    store.keep("s", "old", asked("x"), said("1"))
    store.keep("s", "used", asked("x"), said("1"))
    clock.now = 8
    store.answer("s", "used")
    clock.now = 12
    with pytest.raises(NotFound):
        store.answer("s", "old")
    assert store.answer("s", "used")


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    clock = Clock()
    store = ResponseStore(StoreLimits(seconds=10), clock)
    store.keep("s", "r0", asked("q0"), said("a0"))
    for turn in range(1, 5):
        clock.now += 8
        store.keep("s", f"r{turn}", asked(f"q{turn}"), said(f"a{turn}"), previous=f"r{turn - 1}")
    assert texts(store.expanded("s", params("r4")))[:2] == ["q0", "a0"]
    with pytest.raises(NotFound):
        store.answer("s", "r1")
    clock.now += 11
    with pytest.raises(NotFound):
        store.answer("s", "r4")
    assert (len(store), store.held, store.bytes) == (0, 0, 0)


def test_count_and_bytes_are_bounded() -> None:
    few = ResponseStore(StoreLimits(count=2))
    for number in range(5):
        few.keep("s", f"r{number}", asked("x"), said("1"))
    assert len(few) == 2 and few.answer("s", "r4")
    small = ResponseStore(StoreLimits(megabytes=0.01))
    for number in range(50):
        small.keep("s", f"r{number}", asked("x" * 1000), said("1"))
    assert 0 < small.bytes <= 10_000 and small.answer("s", "r49")
    none = ResponseStore(StoreLimits(count=0))
    none.keep("s", "r", asked("x"), said("1"))
    assert none.bytes == 0 and len(none) == 0


def test_what_was_answered_on_top_of_a_forgotten_answer_stays_whole() -> None:
    store = ResponseStore()
    store.keep("s", "r1", asked("one"), said("1"))
    store.keep("s", "r2", asked("two"), said("2"), previous="r1")
    store.forget("s", "r1")
    with pytest.raises(NotFound):
        store.answer("s", "r1")
    assert texts(store.expanded("s", params("r2")))[0] == "one"
    store.forget("s", "r2")
    assert (store.held, store.bytes) == (0, 0)


def test_an_id_that_several_answers_have_names_none() -> None:
    store = ResponseStore()
    store.keep("s", "r", asked("one"), said("1"))
    store.keep("s", "r", asked("one"), said("1"))
    assert store.answer("s", "r") == said("1")
    store.keep("s", "r", asked("one"), said("2"))
    with pytest.raises(Conflict, match="several answers"):
        store.expanded("s", params("r"))
    store.forget("s", "r")
    assert len(store) == 0


def test_what_goes_on_from_an_answer_that_is_gone_is_not_kept() -> None:
    store = ResponseStore()
    store.keep("s", "r2", asked("two"), said("2"), previous="gone")
    assert len(store) == 0


class Life(RuleBasedStateMachine):
    """Whatever is kept, used and forgotten: the counts are those of what is held, and within the bounds."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = ResponseStore(StoreLimits(count=6, megabytes=0.02, seconds=10), self.clock)
        self.number = 0

    @rule(target=ids, size=st.integers(0, 3000))
    def begin(self, size: int) -> str:
        self.number += 1
        self.store.keep("s", f"r{self.number}", asked("x" * size), said("1"))
        return f"r{self.number}"

    @rule(target=ids, previous=ids)
    def go_on(self, previous: str) -> str:
        self.number += 1
        self.store.keep("s", f"r{self.number}", asked("y"), said("2"), previous=previous)
        return f"r{self.number}"

    @rule(identity=ids)
    def use(self, identity: str) -> None:
        try:
            history = self.store.items("s", identity)
        except NotFound:
            return
        assert len(history) % 2 == 0 and history[-1]["role"] == "assistant"

    @rule(identity=ids)
    def forget(self, identity: str) -> None:
        try:
            self.store.forget("s", identity)
        except NotFound:
            return

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def bounded(self) -> None:
        reached = {}
        for entry in self.store._entries.values():
            while entry is not None:
                reached[id(entry)] = entry.size
                entry = entry.before  # type: ignore[assignment]
        assert self.store.held == len(reached) <= 6
        assert self.store.bytes == sum(reached.values()) <= 20_000


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_a_caller_is_known_by_its_key_in_whichever_header_it_brings_it() -> None:
    mine = scope_of("", "a", "r")
    assert mine == scope_of("Bearer a", "", "r") == scope_of("bearer a", "a", "r")
    assert len({mine, scope_of("", "b", "r"), scope_of("Bearer a", "b", "r"), scope_of("", "", "r")}) == 4
