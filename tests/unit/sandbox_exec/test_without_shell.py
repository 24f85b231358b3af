"""An image may have no shell."""

from __future__ import annotations

import pytest
from gymbox_sandbox import commands
from gymbox_sandbox.problems import Invalid


def test_a_command_in_one_string_is_refused_where_there_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.os, "access", lambda path, mode: False)
    with pytest.raises(Invalid, match=r"no shell in this image .* as a list of words"):
        commands._shell()
