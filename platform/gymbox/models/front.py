"""Front: a model that stands before another and answers as it does, while something is noted of each call."""

from __future__ import annotations

from typing import Any, Self

from pydantic import PrivateAttr

from gymbox.http import HttpClient
from gymbox.models import Call, Model


class FrontModel(Model):
    """Has the name, price, store and life of the model behind it. How calls get there each front says itself, for
    every dialect: one that it left out would be converted, and the model asked in another than the caller's."""

    _model: Model = PrivateAttr()

    @classmethod
    def before(cls, model: Model) -> Self:
        """One that stands before `model`."""
        made = cls(name=model.name, price=model.price)
        made._model = model
        return made

    @property
    def has_store(self) -> bool:
        return self._model.has_store

    async def open(self) -> None:
        await self._model.open()

    async def ready(self, http: HttpClient, timeout: float) -> None:
        await self._model.ready(http, timeout)

    async def close(self) -> None:
        await self._model.close()

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """It samples nothing and costs nothing, so there is nothing to note."""
        return await self._model.count_tokens(body, call)
