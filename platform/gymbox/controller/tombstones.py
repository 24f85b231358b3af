"""Tombstones: the sandboxes that have ended, remembered for a while, so that who asks is told why."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gymbox.controller.routes import Routes
from gymbox.controller.sandbox import Sandbox
from gymbox.errors import Gone


class Tombstones:
    """Those of one controller, the oldest first; the proxy knows them, too.

    Args:
        most: that are remembered.
    """

    def __init__(self, routes: Routes, most: int) -> None:
        self._routes = routes
        self._most = most
        self._ended: OrderedDict[str, Sandbox] = OrderedDict()

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._ended.values())

    def get(self, id: str) -> Sandbox | None:
        """The sandbox of that id, if it has ended and is remembered."""
        return self._ended.get(id)

    def put(self, sandbox: Sandbox) -> None:
        """Remember one that has just ended, and forget the oldest of those remembered."""
        self._ended[sandbox.id] = sandbox
        # without what untrusted code printed: who holds but a tools token is not told that
        ended = sandbox.ended and sandbox.ended.model_copy(update={"logs": ""})
        self._routes.put(sandbox.route.model_copy(update={"socket": None, "address": None, "ended": ended}))
        while len(self._ended) > self._most:
            oldest, _ = self._ended.popitem(last=False)
            self._routes.drop(oldest)

    def drop(self, id: str) -> None:
        """Its id is used again; what never ended is fine."""
        self._ended.pop(id, None)

    def is_used_up(self, id: str) -> bool:
        """Whether a sandbox of that id has ended, so that none can be created."""
        before = self._ended.get(id)
        return before is not None and before.error is None

    def refuse(self, id: str) -> None:
        """
        Raises:
            Gone: a sandbox of that id has ended, and was not one whose start failed.
        """
        before = self._ended.get(id)
        if before is not None and before.ended is not None and before.error is None:
            raise Gone(f"sandbox {id} has ended: {before.ended.detail}", ended=before.ended.model_dump(mode="json"))
