"""Counter: state that lives as long as the task; the agent must bring it to the right value."""

from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, tool

LARGEST = 10**15
"""A counter beyond it is no counter; refused, so that a verdict never depends on huge numbers."""


class Counter(ResourcesServer):
    """`reset` starts at the row's `initial_count`; `verify` compares with its hidden `expected_count`."""

    count: int

    async def reset(self, task: Task) -> None:
        self.count = whole_number(task, "initial_count", default=0)

    async def snapshot(self) -> int:
        return self.count

    async def restore(self, task: Task, state: int) -> None:
        self.count = state

    @tool
    async def increment_counter(self, count: int) -> dict[str, bool]:
        """Add a number to the counter.

        Args:
            count: What to add; negative numbers take away.
        """
        if abs(self.count + count) > LARGEST:
            raise ToolError(f"the counter stays between -{LARGEST} and {LARGEST}; it is at {self.count}")
        self.count += count
        return {"success": True}

    @tool
    async def get_counter_value(self) -> dict[str, int]:
        """Tell the value of the counter."""
        return {"count": self.count}

    async def verify(self, task: Task, response: Response) -> bool:
        return self.count == whole_number(task, "expected_count")


def whole_number(task: Task, name: str, default: int | None = None) -> int:
    """The row's field `name`.

    Raises:
        ValueError: it is no whole number, or missing without a default.
    """
    value = getattr(task, name, default)
    if type(value) is not int:
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value
