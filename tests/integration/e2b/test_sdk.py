"""E2B's own SDK, as a foreign program: it knows an address and a key, and nothing of gymbox."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.integration.e2b.conftest import Facade
from tests.own_venv import ROOT, interpreter_with, ran

Run = Callable[..., Awaitable[str]]


@pytest.mark.parametrize("checks", ["sdk_sync.py", "sdk_async.py"])
async def test_the_sdk_uses_sandboxes(sdk: Run, checks: str) -> None:
    said = await sdk(checks)
    assert " passed" in said and "skipped" not in said


async def test_the_program_of_the_documentation_says_what_it_should(facade: Facade, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sandboxes.md").read_text()
    [program] = re.findall(r"^```python file=e2b_box.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "e2b_box.py").write_text(program)
    interpreter = interpreter_with("e2b")
    said = await ran(interpreter, str(tmp_path / "e2b_box.py"), measured=False, **facade.variables)
    assert said == "hello world\nprint(1 + 2)\n3\n['code']\n"
