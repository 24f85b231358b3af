"""Thoughts: what a model thinks aloud in `<think>` tags, told from its text while it comes."""

from __future__ import annotations

from collections.abc import Iterator

_OPENED, _CLOSED = "<think>", "</think>"


class Thoughts:
    """Tells thoughts in `<think>` tags from text, as it comes."""

    def __init__(self) -> None:
        self._kept = ""
        """Not told yet: it may belong to a tag, or be space that does not count."""
        self._state = "beginning"

    def are_apart(self) -> None:
        """Thoughts come in a field of their own, so tags are text."""
        if self._state == "beginning":
            self._state = "text"

    def split(self, content: str) -> Iterator[tuple[bool, str]]:
        """Whether it is thought, and the text."""
        kept, self._kept = self._kept + content, ""
        if self._state == "beginning":
            begun = kept.lstrip()
            if _OPENED.startswith(begun[: len(_OPENED)]) and len(begun) < len(_OPENED):
                self._kept = kept
                return
            if begun.startswith(_OPENED):
                self._state, kept = "thinking", begun.removeprefix(_OPENED).lstrip()
            else:
                self._state = "text"
        if self._state == "thinking":
            thought, closed, after = kept.partition(_CLOSED)
            if not closed:
                told_now = thought[: _safe(thought)]
                self._kept = thought[len(told_now) :]
                if told_now:
                    yield True, told_now
                return
            if thought.rstrip():
                yield True, thought.rstrip()
            self._state, kept = "after", after
        if self._state == "after":
            kept = kept.lstrip("\n")
            if kept:
                self._state = "text"
        if kept:
            yield False, kept

    def rest(self) -> Iterator[tuple[bool, str]]:
        """What is left to tell at the end, or before what is told elsewhere."""
        kept, self._kept = self._kept, ""
        if self._state == "thinking" and kept.strip():
            yield True, kept.rstrip()
        elif self._state in ("beginning", "text") and kept:
            # no tag may follow it
            self._state = "text"
            yield False, kept


def _safe(thought: str) -> int:
    """How much of it cannot belong to the closing tag, nor to the space before that."""
    length = len(thought)
    for size in range(min(len(_CLOSED) - 1, length), 0, -1):
        if thought.endswith(_CLOSED[:size]):
            length -= size
            break
    return len(thought[:length].rstrip())
