"""Places: where the command line is, where it finds environments, and keeps the admin token and controllers' state."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path

import gymbox
from gymbox import logs
from gymbox.errors import ConfigError
from gymbox.runs.places import TOKEN_VARIABLE, Places


def program() -> str:
    """What to type to run this command line again: its path as it was called, unless the PATH has it."""
    called = Path(sys.argv[0])
    if called.name != "gymbox":
        called = Path(sys.executable).with_name("gymbox")
    on_path = shutil.which("gymbox")
    return "gymbox" if on_path and Path(on_path).resolve() == called.resolve() else shlex.quote(str(called))


def here() -> Places:
    """What a run that is started here needs to know.

    Raises:
        ConfigError: see `admin_token`.
    """
    return Places(tuple(environment_folders()), state_folder(), cache_folder(), admin_token())


def environment_folders() -> list[Path]:
    """`./environments`, then those that come with gymbox."""
    package = Path(gymbox.__file__).parent
    shipped = [package.parents[1] / "environments", package / "environments"]  # in a checkout; in a wheel
    return [Path("environments"), *(folder for folder in shipped if folder.is_dir())]


def state_folder() -> Path:
    """Where controllers of this user keep their state, the sandboxes' sockets with it."""
    if os.geteuid() == 0:
        return Path("/run/gymbox")  # a folder that the servers' own user can get through, unlike root's home
    if os.environ.get("XDG_RUNTIME_DIR", "").startswith("/"):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / "gymbox"
    return _home("XDG_STATE_HOME", ".local/state") / "gymbox"


def cache_folder() -> Path:
    """Where this user keeps what can be made again."""
    return _home("XDG_CACHE_HOME", ".cache") / "gymbox"


def data_folder() -> Path:
    """Where a controller of this user keeps what it was asked to make."""
    return _home("XDG_DATA_HOME", ".local/share") / "gymbox"


def admin_token() -> str:
    """The admin token: $GYMBOX_TOKEN, else that of this user's file, which is made if there is none. It is hidden
    from the logs.

    Raises:
        ConfigError: the file cannot be read or made, or others may read it.
    """
    token = os.environ.get(TOKEN_VARIABLE) or _kept_token()
    logs.hide(token)
    return token


def token_place() -> str:
    """Where `admin_token` has it from."""
    return f"${TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else str(_token_file())


def _token_file() -> Path:
    return _home("XDG_CONFIG_HOME", ".config") / "gymbox" / "token"


def _kept_token() -> str:
    path = _token_file()
    try:
        if not path.exists():
            _make_token(path)
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others; run: chmod 600 {path}")
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot keep the admin token in {path}: {error.strerror}; set ${TOKEN_VARIABLE}") from error


def _make_token(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"token.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"gbx_admin_{secrets.token_urlsafe(32)}\n")
    if os.geteuid() == 0:
        # in a container, root makes it in a folder of the user who will read it
        os.chown(fresh, path.parent.stat().st_uid, path.parent.stat().st_gid)
    try:
        os.link(fresh, path)  # whole, so that nobody who starts at the same time reads half of it
    except FileExistsError:
        pass  # theirs was first
    finally:
        fresh.unlink()


def _home(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / default
