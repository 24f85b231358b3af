"""NewEnvironment: collect numbers with a tool, then say their sum."""

from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, tool


class NewEnvironment(ResourcesServer):
    """One sandbox, one task, one instance: `self` is the session."""

    async def reset(self, task: Task) -> None:
        # the row comes without `verifier_metadata`, which only verify sees
        self.cards: dict[str, int] = dict(task.cards)

    @tool
    async def read_card(self, name: str) -> int:
        """Read the number on a card.

        Args:
            name: Name of the card.
        """
        if name not in self.cards:
            raise ToolError(f"there is no card {name!r}; the cards are {', '.join(self.cards)}")
        return self.cards[name]

    async def verify(self, task: Task, response: Response) -> float:
        expected = str(task.verifier_metadata["sum"])
        words = response.output_text.replace(".", " ").split()
        return 1.0 if words[-1:] == [expected] else 0.0
