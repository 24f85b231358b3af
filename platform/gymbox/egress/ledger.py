"""Ledger: what one sandbox was let through to, and what it was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_TOLD = 100
"""Different refusals of a sandbox that are told one by one; the others are only counted."""
_LONGEST = 200


class Refused(Exception):
    """A connection that is not made, or not gone on with.

    Args:
        target: what was asked for.
        why: for the sandbox and for the log.
        status: of the answer, where HTTP is spoken.
    """

    def __init__(self, target: str, why: str, *, status: int = 403) -> None:
        super().__init__(f"{target}: {why}")
        self.target = target
        self.why = why
        self.status = status


@dataclass(slots=True)
class Ledger:
    """Counts for one sandbox. A sandbox may try as often as it likes: what is kept is bounded."""

    changed: Callable[[], object]
    """Called after each change."""
    tell: Callable[[], object] = lambda: None
    """Called where that has to be told at once: what made the call may end, and be scored, in the next moment."""
    let_through: int = 0
    names_answered: int = 0
    refused: int = 0
    models_unanswered: int | None = None
    """Model calls that got no answer, since the last that got one; None: there was no call yet."""
    news: list[dict[str, str]] = field(default_factory=list)
    """Refusals that have not been told yet."""
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def passed(self) -> None:
        """A connection or a request was let through."""
        self.let_through += 1
        self.changed()

    def answered(self) -> None:
        """A question about a listed name was answered, which lets nothing through yet."""
        self.names_answered += 1
        self.changed()

    def refuse(self, kind: str, refusal: Refused) -> None:
        """One was not. `kind` is how it was asked for."""
        self.refused += 1
        target, why = _shown(refusal.target), _shown(refusal.why)
        if (kind, target) not in self._seen and len(self._seen) < MOST_TOLD:
            self._seen[kind, target] = 1
            self.news.append({"kind": kind, "target": target, "why": why})
        self.changed()

    def model_call(self, *, answered: bool) -> None:
        """A model call is over."""
        before, self.models_unanswered = self.models_unanswered, 0 if answered else (self.models_unanswered or 0) + 1
        self.changed()
        if bool(before) == answered:
            self.tell()

    def report(self) -> dict[str, Any]:
        """What there is to tell now; each refusal is told once."""
        news, self.news = self.news, []
        counts = {name: getattr(self, name) for name in ("let_through", "names_answered", "refused")}
        return {**counts, "models_unanswered": self.models_unanswered, "news": news}


def _shown(text: str) -> str:
    """A text of the sandbox's, fit for a log."""
    return "".join(char if char.isprintable() else "?" for char in text[:_LONGEST])
