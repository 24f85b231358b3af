"""Routes: the table by which sandboxes are found. It is replaced as a whole, never changed."""

from __future__ import annotations

from gymbox_sandbox.lifecycle import Route, RouteTable

from gymbox.errors import Conflict, Unavailable
from gymbox.proxy.upstreams import Upstreams


class Routes:
    """The last table that the controller pushed."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._table: RouteTable | None = None
        self._by_id: dict[str, Route] = {}
        self._model_tokens: set[str] = set()

    async def replace(self, table: RouteTable) -> None:
        """Go by `table` from now on, and drop the connections of sandboxes that are no longer in it.

        The same version again is fine and changes nothing.

        Raises:
            Conflict: a newer table is here already.
        """
        if self._table is not None and table.version <= self._table.version:
            if table.version == self._table.version:
                return
            raise Conflict(f"route table {table.version} is older than {self._table.version}", version=self.version)
        self._table = table
        self._by_id = {route.sandbox: route for route in table.routes}
        self._model_tokens = {route.models_token for route in table.routes if route.models_token and not route.ended}
        await self._upstreams.keep({route.socket for route in table.routes if route.socket and not route.ended})

    @property
    def table(self) -> RouteTable:
        """
        Raises:
            Unavailable: no controller has pushed one yet.
        """
        if self._table is None:
            raise Unavailable("no controller has told this proxy its routes yet", retry_after=1)
        return self._table

    @property
    def version(self) -> int:
        """Of the table; -1 before the first."""
        return -1 if self._table is None else self._table.version

    @property
    def admin_token(self) -> str:
        """SHA-256 hex of the token that may call everything, or a value that no token has.

        Raises:
            Unavailable: no controller has pushed a table yet.
        """
        return self.table.admin_token

    def may_call_models(self, fingerprint: str) -> bool:
        """Whether this is the SHA-256 of a token that model calls of a live sandbox bring."""
        return fingerprint in self._model_tokens

    def find(self, sandbox: str) -> Route | None:
        """The route of a sandbox, ended ones included."""
        return self._by_id.get(sandbox)
