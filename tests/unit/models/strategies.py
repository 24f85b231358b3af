"""Strategies: histories, tools, requests and answers in the Responses format, drawn at random for property tests.

Everything drawn is a JSON-ready dict (or a list of them) that is legal for the Responses API. Each strategy draws only
what is asked for, so a dialect that has no place for something leaves it out by a keyword.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Drawn = dict[str, Any]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
PDF = base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode()
WAV = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
"""Never empty, any character that UTF-8 can carry."""
spoken = texts.filter(lambda text: bool(text.strip()))
"""Never blank either: some APIs refuse a block of nothing but white space."""
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,15}", fullmatch=True)
"""Of tools, schemas and metadata."""
objects = st.dictionaries(
    names,
    st.one_of(st.integers(-(2**53), 2**53), st.booleans(), st.none(), texts, st.lists(texts, max_size=2)),
    max_size=3,
)
"""JSON objects, as arguments of calls are."""


def text_parts(kind: str = "input_text") -> st.SearchStrategy[Drawn]:
    """A part of text."""
    return st.builds(lambda text: {"type": kind, "text": text}, spoken)


def image_parts() -> st.SearchStrategy[Drawn]:
    """An image as a data URL or an address."""
    urls = st.sampled_from([f"data:image/png;base64,{PNG}", "https://images.example/a.png"])
    return st.builds(lambda url: {"type": "input_image", "image_url": url, "detail": "auto"}, urls)


def file_parts() -> st.SearchStrategy[Drawn]:
    """A document, its bytes inline."""
    return st.builds(
        lambda name: {
            "type": "input_file",
            "filename": f"{name}.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        },
        names,
    )


def audio_parts() -> st.SearchStrategy[Drawn]:
    """Sound, its bytes inline."""
    kinds = st.sampled_from(["wav", "mp3"])
    return st.builds(lambda kind: {"type": "input_audio", "input_audio": {"data": WAV, "format": kind}}, kinds)


def input_parts(*, images: bool = True, files: bool = True, audio: bool = False) -> st.SearchStrategy[Drawn]:
    """A part of what a user or a tool says."""
    kinds = [text_parts()]
    kinds += [image_parts()] if images else []
    kinds += [file_parts()] if files else []
    kinds += [audio_parts()] if audio else []
    return st.one_of(kinds)


def contents(**parts: bool) -> st.SearchStrategy[str | list[Drawn]]:
    """A string, or a list of parts that is not empty."""
    return st.one_of(spoken, st.lists(input_parts(**parts), min_size=1, max_size=3))


def users(**parts: bool) -> st.SearchStrategy[Drawn]:
    """A message of the user."""
    return st.builds(lambda content: {"type": "message", "role": "user", "content": content}, contents(**parts))


def assistants(*, refusals: bool = True) -> st.SearchStrategy[Drawn]:
    """A message of the model: one part of text, or a refusal."""
    kinds = [text_parts("output_text")]
    kinds += [st.builds(lambda text: {"type": "refusal", "refusal": text}, spoken)] if refusals else []
    return st.builds(lambda part: {"type": "message", "role": "assistant", "content": [part]}, st.one_of(kinds))


def reasonings(*, signed: bool = False) -> st.SearchStrategy[Drawn]:
    """Reasoning that tells its summary; `signed` adds a provider's `encrypted_content`."""
    more = st.just({"encrypted_content": base64.b64encode(b"signature").decode()} if signed else {})
    return st.builds(
        lambda text, extra: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **extra},
        spoken,
        more,
    )


def calls(call_id: str) -> st.SearchStrategy[Drawn]:
    """A call of a tool with an object as arguments."""
    return st.builds(
        lambda name, arguments: {
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": json.dumps(arguments),
        },
        names,
        objects,
    )


def outputs(call_id: str, **parts: bool) -> st.SearchStrategy[Drawn]:
    """What a tool answered: a string, or parts."""
    return st.builds(
        lambda content: {"type": "function_call_output", "call_id": call_id, "output": content}, contents(**parts)
    )


@st.composite
def turns(
    draw: st.DrawFn, number: int, *, refusals: bool = True, reasoning: bool = True, signed: bool = False, **parts: bool
) -> list[Drawn]:
    """A question and the model's turn: [reasoning], [text], parallel calls and all their results; or a last word."""
    items = [draw(users(**parts))]
    if reasoning and draw(st.booleans()):
        items.append(draw(reasonings(signed=signed)))
    identities = [f"call_{number}_{index}" for index in range(draw(st.integers(0, 3)))]
    if not identities:
        return [*items, draw(assistants(refusals=refusals))]
    if draw(st.booleans()):
        items.append(draw(assistants(refusals=False)))
    items += [draw(calls(identity)) for identity in identities]
    return items + [draw(outputs(identity, **parts)) for identity in draw(st.permutations(identities))]


@st.composite
def histories(draw: st.DrawFn, *, max_turns: int = 4, **kinds: bool) -> list[Drawn]:
    """Items of several turns, never empty; ends with a question or with results. `kinds`: as `turns` has them."""
    made = [draw(turns(number, **kinds)) for number in range(draw(st.integers(0, max_turns)))]
    parts = {name: value for name, value in kinds.items() if name in ("images", "files", "audio")}
    return [item for turn in made for item in turn] + [draw(users(**parts))]


def tools() -> st.SearchStrategy[list[Drawn]]:
    """Function tools with names of their own."""
    tool = st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "name": names,
            "parameters": st.builds(
                lambda fields: {"type": "object", "properties": {name: {"type": "string"} for name in fields}},
                st.lists(names, max_size=2),
            ),
        },
        optional={"description": spoken, "strict": st.booleans()},
    )
    return st.lists(tool, min_size=1, max_size=3, unique_by=lambda each: each["name"])


def tool_choices(offered: list[Drawn], *, allowed: bool = True) -> st.SearchStrategy[str | Drawn]:
    """Every form of `tool_choice` for these tools."""
    one = st.sampled_from([{"type": "function", "name": tool["name"]} for tool in offered])
    forms: list[st.SearchStrategy[Any]] = [st.sampled_from(["auto", "none", "required"]), one]
    if allowed:
        forms.append(
            st.builds(
                lambda mode, chosen: {"type": "allowed_tools", "mode": mode, "tools": [chosen]},
                st.sampled_from(["auto", "required"]),
                one,
            )
        )
    return st.one_of(forms)


def text_formats() -> st.SearchStrategy[Drawn]:
    """`text.format` for structured output."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    return st.one_of(
        st.just({"type": "json_object"}),
        st.builds(lambda name: {"type": "json_schema", "name": name, "schema": schema, "strict": True}, names),
    )


efforts = st.sampled_from(["minimal", "low", "medium", "high"])


@st.composite
def requests(
    draw: st.DrawFn, *, formats: bool = True, allowed: bool = True, metadata: bool = True, **kinds: bool
) -> Drawn:
    """A whole request. `kinds`: as `histories` has them."""
    body: Drawn = {"input": draw(histories(**kinds))}
    options: dict[str, st.SearchStrategy[Any]] = {
        "model": names,
        "instructions": spoken,
        "max_output_tokens": st.integers(16, 100_000),
        "temperature": st.floats(0, 1, width=16),
        "top_p": st.floats(0, 1, width=16),
    }
    if metadata:
        options["metadata"] = st.dictionaries(names, texts, max_size=2)
    for name, strategy in options.items():
        if draw(st.booleans()):
            body[name] = draw(strategy)
    if draw(st.booleans()):
        body["tools"] = draw(tools())
        if draw(st.booleans()):
            body["tool_choice"] = draw(tool_choices(body["tools"], allowed=allowed))
        if draw(st.booleans()):
            body["parallel_tool_calls"] = draw(st.booleans())
    if formats and draw(st.booleans()):
        body["text"] = {"format": draw(text_formats())}
    if draw(st.booleans()):
        body["reasoning"] = {"effort": draw(efforts)}
    return body


@st.composite
def usages(draw: st.DrawFn) -> Drawn:
    """Token counts that add up, details included."""
    prompt, completion = draw(st.integers(1, 10_000)), draw(st.integers(1, 10_000))
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_details": {"cached_tokens": draw(st.integers(0, prompt))},
        "output_tokens_details": {"reasoning_tokens": draw(st.integers(0, completion))},
    }


@st.composite
def responses(
    draw: st.DrawFn, *, refusals: bool = True, reasoning: bool = True, signed: bool = False, incomplete: bool = True
) -> Drawn:
    """A whole answer, completed or cut off: [reasoning], then a message, calls or both."""
    output: list[Drawn] = []
    if reasoning and draw(st.booleans()):
        output.append({"id": "rs_1", **draw(reasonings(signed=signed))})
    count = draw(st.integers(0, 3))
    if not count or draw(st.booleans()):
        message = draw(assistants(refusals=refusals and not count))
        part = message["content"][0]
        content = [{**part, "annotations": []}] if part["type"] == "output_text" else [part]
        output.append({"id": "msg_1", **message, "status": "completed", "content": content})
    output += [{"id": f"fc_{index}", **draw(calls(f"call_{index}")), "status": "completed"} for index in range(count)]
    reason = (
        draw(st.sampled_from(["max_output_tokens", "content_filter"])) if incomplete and draw(st.booleans()) else None
    )
    if reason is not None and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": draw(names),
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": output,
        "usage": draw(usages()),
    }


# --- what is wrong

junk: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(
            ["assistant", "tool", "message", "function_call", "reasoning", "input_image", "image_url", "file"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "id", "call_id", "function", "format", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
"""Any JSON, in the words of the formats."""


@st.composite
def mutated(draw: st.DrawFn, whole: st.SearchStrategy[Any], *, times: int = 2) -> Any:
    """What `whole` draws, with a few of its values, at any depth, replaced by junk, taken out or said twice."""
    value = json.loads(json.dumps(draw(whole)))
    for _ in range(draw(st.integers(1, times))):
        places = list(_places(value))
        if not places:
            return draw(junk)
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["replace", "remove", "twice"]))
        if change == "replace":
            holder[key] = draw(junk)
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[draw(names)] = holder[key]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, within in inner:
        yield value, key
        yield from _places(within)
