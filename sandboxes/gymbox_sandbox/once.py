"""Once: work that a caller names, so that asking for it again never does it again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from pydantic import BaseModel

from gymbox_sandbox.problems import AtCapacity, Conflict, Gone

_MOST = 256
_MOST_BYTES = 16_000_000
"""Of answers kept, as JSON."""
_MOST_FORGOTTEN = 20_000


class Forgotten:
    """Names that were used and about which nothing else is known any more; the oldest are forgotten altogether."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def add(self, name: str) -> None:
        self._names[_digest(name)] = None
        while len(self._names) > _MOST_FORGOTTEN:
            self._names.popitem(last=False)

    def __contains__(self, name: str) -> bool:
        return _digest(name) in self._names


class _Work(NamedTuple):
    asked: bytes
    task: asyncio.Task[BaseModel]


class Once:
    """Does work under names, and keeps the answers of the last."""

    def __init__(self) -> None:
        self._works: OrderedDict[str, _Work] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._forgotten = Forgotten()

    async def run[Result: BaseModel](
        self, name: str, request: BaseModel, work: Callable[[Callable[[], None]], Coroutine[Any, Any, Result]]
    ) -> Result:
        """The answer of `work`, which is done once under this name, whoever stops waiting for it meanwhile.

        Args:
            work: gets a function to call as soon as it has an effect. Failing before, it may be tried again.

        Raises:
            Conflict: the name was used for another request.
            Gone: it was done, and its answer is no longer kept.
            AtCapacity: too many are under way.
        """
        asked = _digest(request.model_dump_json())
        known = self._works.get(name)
        if known is None:
            if name in self._forgotten:
                raise Gone(
                    f"the request {name!r} was answered before; its answer is no longer kept", cause="forgotten"
                )
            self._make_room()
            begun = asyncio.Event()
            task: asyncio.Task[Any] = asyncio.create_task(work(begun.set))
            known = self._works[name] = _Work(asked, task)
            task.add_done_callback(lambda _: self._ended(name, begun.is_set()))
        elif known.asked != asked:
            raise Conflict(f"the request id {name!r} was used for another request")
        answer: Any = await asyncio.shield(known.task)
        return answer  # type: ignore[no-any-return]

    def _ended(self, name: str, had_effect: bool) -> None:
        task = self._works[name].task
        if task.cancelled() or (task.exception() is not None and not had_effect):
            del self._works[name]
        elif task.exception() is None:
            self._sizes[name] = len(task.result().model_dump_json())
            self._make_room(beside=0)

    def _make_room(self, beside: int = 1) -> None:
        done = [name for name, work in self._works.items() if work.task.done()]
        while len(self._works) + beside > _MOST or sum(self._sizes.values()) > _MOST_BYTES:
            if not done:
                raise AtCapacity(f"{_MOST} requests with an id are under way", retry_after=1)
            name = done.pop(0)
            del self._works[name]
            self._sizes.pop(name, None)
            self._forgotten.add(name)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
