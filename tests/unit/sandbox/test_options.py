"""The command line of a sandbox's server."""

from __future__ import annotations

import pytest
from gymbox_sandbox.__main__ import main
from gymbox_sandbox.options import Options, User

NEEDED = ["--name", "counter", "--server", "server.py"]


def test_a_command_line_becomes_options() -> None:
    given = ["--server-user", "10002:10003", "--agent-user", "10001", "--max-sessions", "4"]
    found = Options.parse([*NEEDED, *given, "--tool-timeout", "5", "--verify-timeout", "7.5"])
    assert (found.server_user, found.agent_user, found.max_sessions) == (User(10002, 10003), User(10001, 10001), 4)
    assert (found.tool_timeout, found.reset_timeout, found.verify_timeout) == (5.0, 60, 7.5)
    assert (found.directory, found.workspace) == ("/run/gymbox", "/workspace")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--tool-timeout", "long"],
        ["--patience", "5"],
        ["--workspace"],
        ["workspace", "/tmp"],
        ["--agent-user", "nobody"],
        ["--max-sessions", "many"],
        ["--nam", "x"],
    ],
)
def test_a_wrong_command_line_ends_with_code_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Options.parse([*NEEDED, *wrong])
    assert caught.value.code == 2


@pytest.mark.parametrize("given", [["--name", "counter"], ["--server", "server.py"]])
def test_name_and_server_must_be_given(given: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Options.parse(given)
    assert caught.value.code == 2


@pytest.mark.parametrize("arguments", [[], ["fly"]])
def test_an_unknown_mode_says_how_it_is_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: python -m gymbox_sandbox serve|zygote" in capsys.readouterr().err
