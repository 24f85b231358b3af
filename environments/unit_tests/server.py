"""Unit tests: the agent writes a Python function; hidden tests run it as untrusted code."""

import hmac
import random
import re
import sys
from typing import Any

from gymbox_sandbox import ExecResult, ResourcesServer, Response, Task, ToolError, Verdict, tool
from gymbox_sandbox.untrusted import call_function, decode, same
from pydantic import BaseModel, ConfigDict, Field

SUBMITTED = "submitted.py"
"""File in the workspace with what was last submitted."""
SHOWN = 8_000
"""Bytes of output that the model is shown."""
FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


class Case(BaseModel):
    """One hidden test; values are coded as in gymbox_sandbox.untrusted."""

    args: list[Any]
    expected: Any


class Fresh(BaseModel):
    """Tests drawn at verify: inputs by `seed` and by what the answer is, expectations from `reference`.

    There are so many that an answer which is wrong for few inputs fails whatever is drawn: who tries variants of a
    wrong one until nothing drawn shows it, and even knows the seed, tries for ages.
    """

    seed: str = Field(min_length=32)
    """At least 128 bits, in hexadecimal digits; nothing that the agent can see may tell it."""
    count: int = Field(ge=1, le=1000)
    inputs: list[dict[str, Any]]
    """One specification an argument; see `drawn`."""
    reference: str
    """Source of the right function."""


class Hidden(BaseModel):
    """`verifier_metadata` of a row."""

    model_config = ConfigDict(extra="forbid")

    function: str
    cases: list[Case]
    fresh: Fresh | None = None
    tolerance: float = 0.0
    timeout: float = Field(default=10, gt=0, le=50)
    """Seconds for all tests of an answer together."""


class UnitTests(ResourcesServer):
    """The answer is the function in the last message's fenced code, or what was last submitted."""

    @tool
    async def run_python(self, code: str) -> str:
        """Run a Python program and return what it printed.

        Args:
            code: The whole program; print what you want to see.
        """
        return shown(await self.exec([sys.executable, "-"], stdin=code, timeout=20, output_limit=100_000))

    @tool
    async def submit(self, code: str) -> str:
        """Hand in the answer; the last one counts.

        Args:
            code: Source code that defines the function.
        """
        # in the workspace, so that a run keeps it and can score it again
        written = await self.exec(["tee", SUBMITTED], stdin=code.encode(errors="replace"), output_limit=0)
        if written.exit_code != 0:
            raise ToolError(f"{SUBMITTED} cannot be written: {written.stderr or 'no space, or no right to'}")
        return "Submitted."

    async def verify(self, task: Task, response: Response) -> Verdict:
        """1.0 if every hidden test passes, else 0.0."""
        hidden = Hidden.model_validate(task.verifier_metadata)
        source = last_definition(response.output_text, hidden.function) or await self.submitted()
        cases = [(decode(case.args), decode(case.expected)) for case in hidden.cases]
        if hidden.fresh:
            cases += await self.fresh_cases(hidden.fresh, hidden.function, source)
        if not source.strip():
            return Verdict(reward=0.0, metrics={"passed": 0, "total": len(cases)})
        inputs = [args for args, _ in cases]
        outcomes = await call_function(self.exec, source, hidden.function, inputs, timeout=hidden.timeout)
        passed = sum(
            outcome.ok and same(expected, outcome.value, tolerance=hidden.tolerance)
            for (_, expected), outcome in zip(cases, outcomes, strict=True)
        )
        return Verdict(reward=float(passed == len(cases)), metrics={"passed": passed, "total": len(cases)})

    async def submitted(self) -> str:
        """What was last submitted; read as the agent's user, whatever the agent has made of the file."""
        return (await self.exec(["cat", SUBMITTED], timeout=10, output_limit=8_000_000)).stdout

    async def fresh_cases(self, fresh: Fresh, function: str, source: str) -> list[tuple[list[Any], Any]]:
        """Tests with inputs that depend on the answer: known rows help nobody, and a second verify agrees.

        Runs before the answer does, so that nothing of the agent's is alive beside the reference.

        Raises:
            RuntimeError: the reference fails: the row is wrong, not the answer.
        """
        inputs = drawn_inputs(fresh, source)
        outcomes = await call_function(self.exec, fresh.reference, function, inputs)
        for args, outcome in zip(inputs, outcomes, strict=True):
            if not outcome.ok:
                raise RuntimeError(f"the reference fails for {args!r:.200}: {outcome.error}")
        return [(args, outcome.value) for args, outcome in zip(inputs, outcomes, strict=True)]


def last_definition(text: str, function: str) -> str:
    """The last fenced block of `text` that defines `function`, or `""`."""
    defines = re.compile(rf"^(?:async\s+)?def\s+{re.escape(function)}\s*\(|^{re.escape(function)}\s*=", re.MULTILINE)
    blocks: list[str] = FENCED.findall(text)
    return next((block for block in reversed(blocks) if defines.search(block)), "")


def drawn_inputs(fresh: Fresh, source: str) -> list[list[Any]]:
    """The arguments of every fresh test for the answer `source`."""
    draw = random.Random(hmac.digest(fresh.seed.encode(), source.encode("utf-8", "surrogatepass"), "sha256"))
    return [[drawn(specification, draw) for specification in fresh.inputs] for _ in range(fresh.count)]


def drawn(specification: dict[str, Any], draw: random.Random) -> Any:
    """A random value: `{"int": [low, high]}`, `{"float": [low, high]}` (3 digits), `{"choice": [value, …]}`,
    `{"str": alphabet, "size": [low, high]}`, `{"list": specification, "size": [low, high]}`,
    `{"mirrored": specification of a string}` (it, then its reverse) or `{"any": [specification, …]}` (one of them).

    Raises:
        ValueError: it is none of these.
    """
    match specification:
        case {"int": [low, high]}:
            return draw.randint(low, high)
        case {"float": [low, high]}:
            return round(draw.uniform(low, high), 3)
        case {"choice": [*values]}:
            return decode(draw.choice(values))
        case {"str": str(alphabet), "size": [low, high]}:
            return "".join(draw.choices(alphabet, k=draw.randint(low, high)))
        case {"list": dict(item), "size": [low, high]}:
            return [drawn(item, draw) for _ in range(draw.randint(low, high))]
        case {"mirrored": dict(half)}:
            text = drawn(half, draw)
            return text + text[::-1][draw.randint(0, 1) :]
        case {"any": [*specifications]}:
            return drawn(draw.choice(specifications), draw)
    raise ValueError(f"{specification!r} specifies no random value")


def shown(result: ExecResult) -> str:
    """What the model gets to see of a finished program."""
    parts = [clipped(result.stdout)]
    if result.stderr:
        parts.append(f"[stderr]\n{clipped(result.stderr)}")
    if result.timed_out:
        parts.append("[it was stopped: out of time]")
    elif result.exit_code != 0:
        ending = f"signal {result.signal}" if result.exit_code is None else f"exit code {result.exit_code}"
        parts.append(f"[{ending}]")
    return "\n".join(part for part in parts if part) or "[no output]"


def clipped(text: str) -> str:
    """The start and end of a long text."""
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters left out …]\n{text[-SHOWN // 2 :]}"
