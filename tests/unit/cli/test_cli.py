from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import gymbox
import pytest
from gymbox import __version__
from gymbox.cli import COMMANDS, main
from gymbox.cli.places import admin_token, environment_folders, program, state_folder
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Unavailable
from gymbox.runs.environments import environments_of


def found_here(names: list[str]) -> list[Environment]:
    return environments_of(names, environment_folders())


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(str(caught.value.code or 0))


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command_and_imports_none(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(flag) == 0
    told = capsys.readouterr().out
    assert all(name in told and text in told for name, text in COMMANDS.items())

    heavy = ["pydantic", "rich", "hydra", "docker", "fastapi", "aiohttp", "uvicorn", "gymbox.errors"]
    code = f"import sys, gymbox.cli\nprint([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_the_package_offers_is_imported_when_it_is_named() -> None:
    code = (
        "import sys, gymbox\n"
        "assert 'run_sync' in dir(gymbox) and not hasattr(gymbox, 'run_synk')\n"
        "heavy = [name for name in ('pydantic', 'asyncio', 'hydra', 'aiohttp') if name in sys.modules]\n"
        "print(heavy, gymbox.run.__name__, gymbox.Budget.__name__, 'gymbox.runs.entry' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "[] run Budget True\n"


def test_all_that_the_package_offers_is_there() -> None:
    assert all(getattr(gymbox, name).__name__ == name for name in gymbox._PLACES)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_module_and_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(command, "--help") == 0
    assert f"gymbox {command}" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["sandbox", "env", "serve"])
def test_lists_of_commands_are_not_cut(
    group: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert leave(group, "--help") == 0

    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert len(listed.splitlines()) > 4 and "..." not in listed and "…" not in listed


def test_what_follows_dev_test_goes_to_pytest(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        leave("dev", "test", "tests/unit/test_layers.py", "--collect-only", "-q", "-k", "no_test_has_this_name") == 5
    )
    assert "deselected" in capfd.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("--version") == 0
    assert capsys.readouterr().out == f"gymbox {__version__}\n"


def test_a_mistyped_command_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("rnu") == 2
    assert "there is no command 'rnu'; did you mean 'run'?" in capsys.readouterr().err


def test_a_mistyped_command_beside_run_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("run", "stauts") == 2
    assert "did you mean `gymbox run status`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("it is wrong"), 2, "gymbox: it is wrong\n"),
        (Unavailable("nobody there"), 1, "gymbox: nobody there\n"),
    ],
)
def test_what_a_user_can_mend_is_one_message(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymbox.cli.run.compose", _raising(error))

    assert leave("run", "environment=counter") == code
    assert capsys.readouterr().err == said


def test_a_bug_keeps_its_traceback_and_ctrl_c_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymbox.cli.run.compose", _raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["run", "environment=counter"])

    monkeypatch.setattr("gymbox.cli.run.compose", _raising(KeyboardInterrupt()))
    assert leave("run", "environment=counter") == 130


def _raising(error: BaseException) -> object:
    def compose(*_: object) -> None:
        raise error

    return compose


def test_the_admin_token_is_made_once_and_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GYMBOX_TOKEN", raising=False)

    token = admin_token()

    assert token.startswith("gbx_admin_") and admin_token() == token
    assert (tmp_path / "gymbox" / "token").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("GYMBOX_TOKEN", "given")
    assert admin_token() == "given"


def test_an_admin_token_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GYMBOX_TOKEN", raising=False)
    admin_token()
    (tmp_path / "gymbox" / "token").chmod(0o644)

    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        admin_token()


def test_a_token_that_cannot_be_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gymbox").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GYMBOX_TOKEN", raising=False)

    with pytest.raises(ConfigError, match=r"cannot keep the admin token in .*; set \$GYMBOX_TOKEN"):
        admin_token()


def test_two_that_start_at_once_agree_on_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GYMBOX_TOKEN", raising=False)
    with ThreadPoolExecutor(8) as pool:
        assert len({found.result() for found in [pool.submit(admin_token) for _ in range(8)]}) == 1
    assert [path.name for path in (tmp_path / "gymbox").iterdir()] == ["token"]


@pytest.mark.parametrize(
    ("user", "runtime", "state", "folder"),
    [
        (0, "/run/user/0", "", "/run/gymbox"),
        (1000, "/run/user/1000", "", "/run/user/1000/gymbox"),
        (1000, "", "/state", "/state/gymbox"),
        (1000, "relative", "relative", "/home/me/.local/state/gymbox"),
    ],
)
def test_state_is_kept_where_its_user_may_and_relative_folders_are_ignored(
    user: int, runtime: str, state: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    for name, value in (("HOME", "/home/me"), ("XDG_RUNTIME_DIR", runtime), ("XDG_STATE_HOME", state)):
        monkeypatch.setenv(name, value)

    assert state_folder() == Path(folder)


def test_environments_are_found_here_first_then_among_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [environment.name for environment in found_here(["counter", "weather"])] == ["counter", "weather"]

    own = tmp_path / "environments" / "counter"
    own.mkdir(parents=True)
    (own / "environment.yaml").write_text("description: mine")
    assert found_here(["counter"])[0].folder == own
    assert [found.folder for found in found_here(["environments/counter"])] == [own]
    monkeypatch.chdir(own)
    assert found_here(["."])[0].folder == own
    assert environment_folders()[0] == Path("environments")


def test_an_unknown_or_repeated_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no environment 'countr'; did you mean 'counter'"):
        found_here(["countr"])
    with pytest.raises(ConfigError, match="'counter' is named twice"):
        found_here(["counter", "counter"])


def test_importing_the_command_line_by_its_modules_works() -> None:
    for command in COMMANDS:
        assert hasattr(importlib.import_module(f"gymbox.cli.{command}"), "app")


def test_the_program_is_named_as_it_can_be_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a folder" / "gymbox"
    here.parent.mkdir()
    here.write_text("#!/bin/sh\n")
    here.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(here)])

    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == f"'{here}'"
    monkeypatch.setenv("PATH", str(here.parent))
    assert program() == "gymbox"
    monkeypatch.setattr("sys.argv", ["-c"])
    assert program() == str(Path(sys.executable).with_name("gymbox"))
