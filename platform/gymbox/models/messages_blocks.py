"""Messages blocks: content blocks of Anthropic's Messages API, and the items and parts of the Responses API they are.

    | block                                  | Responses                                                              |
    |----------------------------------------|------------------------------------------------------------------------|
    | `text`                                 | `input_text`, `output_text`                                            |
    | `image` (base64, url, file)            | `input_image` (data URL, URL, `file_id`); `detail` has no place        |
    | `document` (base64, text, url, file)   | `input_file` (`file_data`, `file_url`, `file_id`); `title`: `filename` |
    | `thinking`                             | `reasoning`: its text the summary, its signature `encrypted_content`   |
    | `redacted_thinking`                    | `reasoning` without text, its data `encrypted_content`                 |
    | `tool_use`                             | `function_call`                                                        |
    | `tool_result`                          | `function_call_output`; `is_error` is `status: incomplete`             |
    | `server_tool_use`, `…_tool_result`, …  | the same, as an item of that type                                      |

`encrypted_content` says by a prefix what it is, so nobody's secret is handed to somebody else: `thinking:` a
signature, `redacted_thinking:` data. A reasoning item of another provider that holds more than its text travels whole
in the signature of a `thinking` block, after `item:`, and is that item again when the caller sends it back.

Fields that neither side names (`cache_control`, `citations`, …) stay beside what they stood beside; what only tells
how an earlier answer came about (ids, log-probs, annotations, token ids) is not sent. The rest is refused by name.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from gymbox_sandbox.responses import FunctionCall, Reasoning

from gymbox.errors import Invalid
from gymbox.models import chat_messages
from gymbox.models.chat_messages import others, reasoning_text
from gymbox.models.strict_json import strict_json
from gymbox.models.token_ids import TOKEN_FIELDS

SIGNED = "thinking:"
REDACTED = "redacted_thinking:"
WHOLE_ITEM = "item:"
RECORD = chat_messages.RECORD | {"status", "id"}
"""Of an item: what is no part of what was said."""
_OF_REASONING = RECORD | {"content"}
_OF_TEXT = frozenset({"type", "text", "annotations", "logprobs"})
_TITLES = {"application/pdf": "document.pdf", "text/plain": "document.txt"}
"""What a document is called that has no title, since the Responses API wants a name for each file."""


def is_provider_block(kind: Any) -> bool:
    """Whether a block of this type tells of a tool that ran at the provider, and is carried as it is."""
    return isinstance(kind, str) and (
        kind in ("server_tool_use", "container_upload", "mcp_tool_use")
        or (kind.endswith("_tool_result") and kind != "tool_result")
    )


# --- parts


def part_from_block(block: Any, text_type: str = "input_text") -> dict[str, Any]:
    """The part of a message, or of a tool's output, that a block is.

    Raises:
        Invalid: there is none; the text names the block's type.
    """
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return {"type": text_type, "text": text_field(block, "text"), **others(block, ("type", "text"))}
    if kind == "image":
        return {"type": "input_image", "detail": "auto", **others(block, ("type", "source")), **_image(_source(block))}
    if kind == "document":
        beside = others(block, ("type", "source", "title"))
        return {"type": "input_file", **beside, **_file(_source(block), block.get("title"))}
    raise Invalid(f"a block of type {kind!r:.60} has no place here" if kind else f"{block!r:.60} is no content block")


def text_field(block: dict[str, Any], name: str) -> str:
    """The text under `name`.

    Raises:
        Invalid: there is none.
    """
    text = block.get(name)
    if not isinstance(text, str):
        raise Invalid(f"a {block.get('type')} block needs its {name}, a string")
    return text


def _source(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise Invalid(f"a block of type {block['type']!r} needs its source, an object")
    return source


def _image(source: dict[str, Any]) -> dict[str, Any]:
    kind = source.get("type")
    if kind == "base64":
        return {"image_url": f"data:{_named(source, 'media_type')};base64,{_named(source, 'data')}"}
    if kind == "url":
        return {"image_url": _named(source, "url")}
    if kind == "file":
        return {"file_id": _named(source, "file_id")}
    raise Invalid(f"an image with a source of type {kind!r:.60} cannot be carried over")


def _file(source: dict[str, Any], title: Any) -> dict[str, Any]:
    kind = source.get("type")
    name = {} if title is None else {"filename": title}
    if kind == "base64":
        media = _named(source, "media_type")
        made = title or _TITLES.get(media, "document")
        return {"filename": made, "file_data": f"data:{media};base64,{_named(source, 'data')}"}
    if kind == "text" or (kind == "content" and isinstance(source.get("content"), str)):
        text = _named(source, "data" if kind == "text" else "content")
        data = base64.b64encode(text.encode("utf-8", "replace")).decode()
        return {"filename": title or _TITLES["text/plain"], "file_data": f"data:text/plain;base64,{data}"}
    if kind == "url":
        return {**name, "file_url": _named(source, "url")}
    if kind == "file":
        return {**name, "file_id": _named(source, "file_id")}
    raise Invalid(f"a document with a source of type {kind!r:.60} cannot be carried over")


def _named(source: dict[str, Any], name: str) -> str:
    value = source.get(name)
    if not isinstance(value, str):
        raise Invalid(f"a source of type {source.get('type')!r} needs its {name}, a string")
    return value


def block_from_part(part: dict[str, Any]) -> dict[str, Any] | None:
    """The block that a part is; None for text that is blank, for which the API has no place.

    Raises:
        Invalid: there is none; the text names the part's type.
    """
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        text = text_field(part, "text")
        return {"type": "text", "text": text, **others(part, _OF_TEXT)} if text.strip() else None
    if kind == "input_image":
        return {"type": "image", "source": _image_source(part), **others(part, ("type", "detail", *_OF_IMAGE))}
    if kind == "input_file":
        return {"type": "document", **_document(part), **others(part, ("type", *_OF_FILE))}
    raise Invalid(f"a part of type {kind!r:.60} has no place in a Messages request")


_OF_IMAGE = ("image_url", "file_id")
_OF_FILE = ("filename", "file_data", "file_url", "file_id", "detail")


def _image_source(part: dict[str, Any]) -> dict[str, Any]:
    url = part.get("image_url")
    if isinstance(url, str) and url.startswith("data:"):
        media, data = _data_url(url)
        return {"type": "base64", "media_type": media, "data": data}
    if isinstance(url, str) and url:
        return {"type": "url", "url": url}
    if isinstance(part.get("file_id"), str):
        return {"type": "file", "file_id": part["file_id"]}
    raise Invalid("an input_image needs its image_url or its file_id")


def _document(part: dict[str, Any]) -> dict[str, Any]:
    name, data = part.get("filename"), part.get("file_data")
    title = {} if name is None or name in _TITLES.values() else {"title": name}
    if isinstance(data, str) and data:
        # some send the bare base64 text, and only the name says what it is
        media, data = _data_url(data) if data.startswith("data:") else (_media_of(name), data)
        if media == "application/pdf":
            return {"source": {"type": "base64", "media_type": media, "data": data}, **title}
        if media.startswith("text/"):
            return {"source": {"type": "text", "media_type": "text/plain", "data": _decoded(data)}, **title}
        raise Invalid(f"an input_file of type {media!r} has no place in a Messages request, only PDF and text")
    if isinstance(part.get("file_url"), str):
        return {"source": {"type": "url", "url": part["file_url"]}, **title}
    if isinstance(part.get("file_id"), str):
        return {"source": {"type": "file", "file_id": part["file_id"]}, **title}
    raise Invalid("an input_file needs its file_data, its file_url or its file_id")


def _media_of(name: Any) -> str:
    if isinstance(name, str) and name.lower().endswith((".txt", ".md")):
        return "text/plain"
    return "application/pdf"


def _data_url(url: str) -> tuple[str, str]:
    head, comma, data = url.partition(",")
    media, _, encoding = head.removeprefix("data:").partition(";")
    if not comma or not encoding.endswith("base64"):
        raise Invalid(f"a data URL must be base64, this begins {url[:40]!r}")
    return media, data


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Invalid(f"file_data: it is no UTF-8 text in base64: {error}") from error


# --- reasoning


def reasoning_from_block(block: dict[str, Any]) -> dict[str, Any]:
    """The reasoning item that a `thinking` or `redacted_thinking` block is.

    Raises:
        Invalid: it lacks its text or data, or bears an item of ours that somebody changed.
    """
    if block["type"] == "redacted_thinking":
        return {"type": "reasoning", "summary": [], "encrypted_content": REDACTED + text_field(block, "data")}
    text, signature = text_field(block, "thinking"), block.get("signature") or ""
    if not isinstance(signature, str):
        raise Invalid("a thinking block's signature must be a string")
    if signature.startswith(WHOLE_ITEM):
        return _unpacked(signature)
    summary = [{"type": "summary_text", "text": text}] if text else []
    sealed = {"encrypted_content": SIGNED + signature} if signature else {}
    return {"type": "reasoning", "summary": summary, **sealed}


def block_from_reasoning(item: Reasoning, *, foreign: bool) -> dict[str, Any] | None:
    """The block that a reasoning item is, or None where there is nothing to show.

    Args:
        foreign: make blocks also of what Anthropic did not sign, which Anthropic itself does not take.

    Raises:
        Invalid: its content is no text.
    """
    extra = item.model_extra or {}
    sealed = extra.get("encrypted_content")
    text = reasoning_text(item)
    if isinstance(sealed, str) and sealed.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": sealed.removeprefix(REDACTED)}
    if isinstance(sealed, str) and sealed.startswith(SIGNED):
        return {"type": "thinking", "thinking": text, "signature": sealed.removeprefix(SIGNED)}
    if not foreign:
        return None
    signature = _packed(item) if others(extra, _OF_REASONING) else ""
    return {"type": "thinking", "thinking": text, "signature": signature} if text or signature else None


def _packed(item: Reasoning) -> str:
    kept = {name: value for name, value in item.dump().items() if name not in TOKEN_FIELDS and value is not None}
    return WHOLE_ITEM + base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()


def _unpacked(signature: str) -> dict[str, Any]:
    try:
        item = json.loads(base64.urlsafe_b64decode(signature.removeprefix(WHOLE_ITEM)))
    except (ValueError, RecursionError) as error:
        raise Invalid("a thinking block's signature was changed; send it back as it came") from error
    if not isinstance(item, dict) or item.get("type") != "reasoning":
        raise Invalid("a thinking block's signature holds no reasoning; send it back as it came")
    return item


# --- calls


def call_from_block(block: dict[str, Any]) -> dict[str, Any]:
    """The call that a `tool_use` block is.

    Raises:
        Invalid: it lacks its id, name or input.
    """
    given = block.get("input", {})
    if not isinstance(given, dict):
        raise Invalid(f"a tool_use block's input must be an object, not {type(given).__name__}")
    return {
        "type": "function_call",
        **others(block, ("type", "id", "name", "input", "index")),
        "call_id": text_field(block, "id"),
        "name": text_field(block, "name"),
        "arguments": json.dumps(given, ensure_ascii=False),
    }


def block_from_call(call: FunctionCall, identity: str) -> dict[str, Any]:
    """The `tool_use` block of a call; arguments that are no JSON object are wrapped, as the API wants an object."""
    block = {"type": "tool_use", "id": identity, "name": call.name, "input": object_input(call.arguments)}
    return block | others(call.model_extra, RECORD)


def object_input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; what is none, wrapped, so that the model still sees what it wrote."""
    try:
        found = strict_json(arguments)
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    return {"invalid_arguments": arguments} if arguments.strip() else {}
