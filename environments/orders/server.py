"""A shop's database that the agent works on with SQL; what counts is what stands in it in the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, tool

if TYPE_CHECKING:
    from asyncpg import Connection

HOST, OWNER, OWNER_PASSWORD, AGENT_PASSWORD = "db", "postgres", "owner", "agent"
COLUMNS = {
    "customers": {"id": "integer", "name": "text", "city": "text"},
    "products": {"id": "integer", "name": "text", "price": "integer", "stock": "integer"},
    "orders": {
        "id": "integer",
        "customer": "integer references customers",
        "product": "integer references products",
        "quantity": "integer",
        "status": "text check (status in ('open', 'shipped', 'cancelled'))",
    },
}
"""Tables of the shop in the order in which they refer to one another; `id` is each one's key."""
MOST_ROWS = 50
LONGEST = "5s"
"""For one statement of the agent."""

Rows = list[dict[str, Any]]


class Orders(ResourcesServer):
    """Change a shop's data as asked, and nothing else."""

    async def reset(self, task: Task) -> None:
        self.owner = await connect(OWNER, OWNER_PASSWORD)
        await self.owner.execute(f"create role agent login password '{AGENT_PASSWORD}'")
        await self.owner.execute(f"alter role agent set statement_timeout = '{LONGEST}'")
        for table, columns in COLUMNS.items():
            fields = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            await self.owner.execute(f"create table {table} ({fields}, primary key (id))")
            await self.owner.copy_records_to_table(
                table, columns=list(columns), records=[[row[name] for name in columns] for row in task.tables[table]]
            )
            await self.owner.execute(f"grant select, insert, update, delete on {table} to agent")
        self.agent = await connect("agent", AGENT_PASSWORD)

    @tool
    async def sql(self, statement: str) -> dict[str, Any]:
        """Run one SQL statement on the shop's PostgreSQL database and return its rows, 50 at most.

        Args:
            statement: One statement, such as `select * from orders where status = 'open'`.
        """
        import asyncpg

        try:
            prepared = await self.agent.prepare(statement)
            found = [dict(row) for row in await prepared.fetch()]
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error
        # what a column holds is the agent's choice, and need not be of JSON
        shown: Rows = json.loads(json.dumps(found[:MOST_ROWS], default=str))
        return {"status": prepared.get_statusmsg(), "rows": shown, "more": max(0, len(found) - MOST_ROWS)}

    async def verify(self, task: Task, response: Response) -> bool:
        """Every table holds exactly the rows of `verifier_metadata`."""
        await self.agent.close()  # what it has not committed is undone
        return all([await self.rows(table) == task.verifier_metadata["tables"][table] for table in COLUMNS])

    async def rows(self, table: str) -> Rows:
        """What a table holds, by id."""
        columns = ", ".join(COLUMNS[table])
        return [dict(row) for row in await self.owner.fetch(f"select {columns} from {table} order by id")]


async def connect(user: str, password: str) -> Connection:
    """A connection to the sandbox's own database."""
    import asyncpg  # in the image; whoever only reads this file does without

    return await asyncpg.connect(host=HOST, user=user, password=password, database="postgres", ssl=False, timeout=10)
