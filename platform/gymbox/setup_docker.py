"""Setup docker: bring up a Docker engine where there is none. Standard library only: it runs before anything else.

`python -m gymbox.setup_docker` exits 0 once an engine answers; otherwise it says why none can be had and how to go on.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DAEMON_LOG = Path("/var/log/gymbox-dockerd.log")
DAEMON_CONFIG = Path("/etc/docker/daemon.json")
DAEMON_DEFAULTS = {
    # containers outlive a crash or an update of the engine
    "live-restore": True,
    # 4096 networks of 62 addresses; Docker's own pools run out near 30 networks
    "default-address-pools": [{"base": "172.20.0.0/14", "size": 26}],
}
PID_FILES = (
    Path("/var/run/docker.pid"),
    Path("/var/run/docker/containerd/containerd.pid"),
    Path("/run/containerd/containerd.pid"),
)
WITHOUT = "run without isolation by containers: provider=process"
INSTALL_BY_HAND = "install Docker by hand (https://docs.docker.com/engine/install/), then run this again"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What setting something up came to."""

    ready: bool
    detail: str
    """What is there now, or why it cannot be had."""
    ways_on: tuple[str, ...] = ()
    """What the user can do instead; empty when ready."""

    def __str__(self) -> str:
        return "\n".join([self.detail, *(f"  - {way}" for way in self.ways_on)])


class SetupFailed(Exception):
    """A step that did not work: the step and the last lines it printed."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ensure_docker(*, say: Say = to_stderr, deadline: float = 120) -> Setup:
    """See to it that a Docker engine answers: nothing to do where one does, else install and start it.

    Installs by apt on Debian, Ubuntu and their relatives, as root or by sudo; elsewhere it only says what to do.
    Idempotent, and safe to run several times at once. Never raises for what the machine lacks.

    Args:
        say: gets one line before anything is changed.
        deadline: seconds that a started engine has to answer.
    """
    if version := engine_version():
        return Setup(True, f"Docker engine {version} answers")
    if refusal := _cannot_be_had():
        return refusal
    try:
        with _one_at_a_time():
            if not engine_version():
                _bring_up(say, deadline)
    except SetupFailed as error:
        return Setup(False, str(error), (INSTALL_BY_HAND, WITHOUT))
    if version := engine_version():
        return Setup(True, f"Docker engine {version} answers")
    user = os.environ.get("USER", "$USER")
    return Setup(
        False,
        f"the Docker engine runs, but {user} may not use it",
        (f"sudo usermod -aG docker {user}, then log in again (this makes {user} as good as root)", WITHOUT),
    )


def engine_version(timeout: float = 5) -> str | None:
    """Version and API version of the engine that the `docker` command reaches; None if none answers."""
    try:
        answer = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}} (API {{.Server.APIVersion}})"],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _cannot_be_had() -> Setup | None:
    """Why this machine cannot be given an engine, or None if it is worth trying."""
    if platform.system() == "Darwin":
        how = "brew install colima docker docker-compose && colima start"
        by_compose = "then run controller and proxy beside the engine: docker compose -f compose/compose.yaml up"
        return Setup(False, f"no Docker engine answers; on macOS: {how}", (how, by_compose))
    if host := os.environ.get("DOCKER_HOST"):
        ways = (f"start the engine at {host}", "unset DOCKER_HOST to use this machine's own", WITHOUT)
        return Setup(False, f"the Docker engine at DOCKER_HOST={host} does not answer", ways)
    if not (shutil.which("apt-get") or shutil.which("dockerd")):
        return Setup(False, "no Docker engine, and this is no Debian or Ubuntu", (INSTALL_BY_HAND, WITHOUT))
    if os.geteuid() != 0 and not shutil.which("sudo"):
        return Setup(False, "no Docker engine, and neither root nor sudo", (INSTALL_BY_HAND, WITHOUT))
    return None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    path = f"/run/lock/gymbox-setup-docker-{os.geteuid()}.lock"  # among users, apt's own lock must do
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _bring_up(say: Say, deadline: float) -> None:
    install = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
    how = "installing Docker by apt and starting it" if install else "starting the Docker engine"
    say(f"gymbox: no Docker engine answers: {how}{'' if os.geteuid() == 0 else ' by sudo'} (about half a minute)")
    _write_daemon_defaults()
    if install:
        _install()
    if _engine_runs(timeout=1):  # the package's own scripts may have started it
        return
    if Path("/run/systemd/system").is_dir():
        run("start Docker", as_root("systemctl", "enable", "--now", "docker"))
        return _until_engine_runs(deadline)
    try:
        _start_daemon(deadline)
    except SetupFailed:
        _start_daemon(deadline)  # a first start on a busy machine can time out on containerd; a second one does not


def _write_daemon_defaults() -> None:
    if not DAEMON_CONFIG.exists():
        run("make the engine's settings folder", as_root("mkdir", "-p", str(DAEMON_CONFIG.parent)))
        text = json.dumps(DAEMON_DEFAULTS, indent=2) + "\n"
        run("write the engine's settings", as_root("tee", str(DAEMON_CONFIG)), stdin=text)


def _install() -> None:
    release = os_release()
    apt("update", "-qq")
    if release.get("VERSION_CODENAME") == "bookworm":
        try:
            return _install_from_next_release("trixie", release["VERSION_CODENAME"])
        except SetupFailed as error:
            to_stderr(f"gymbox: {error}\ngymbox: taking this release's own engine instead")
    ubuntu = "ubuntu" in f"{release.get('ID')} {release.get('ID_LIKE')}"
    plugins = ["docker-buildx", "docker-compose-v2"] if ubuntu else ["docker-cli", "docker-buildx", "docker-compose"]
    try:
        apt("install", "docker.io", "iptables", *plugins)
    except SetupFailed:
        apt("install", "docker.io", "iptables")  # an older release, without those plugins


def _install_from_next_release(suite: str, release: str) -> None:
    """Debian 12 has engine 20.10; the next release's needs nothing newer than what 12 has, except for its runc.

    Only these packages are taken, and no apt source is left behind.
    """
    mirror = debian_mirror(Path("/etc/apt"), release)
    if mirror is None:
        raise SetupFailed(f"no apt source of {release} was found on this machine")
    with tempfile.TemporaryDirectory(prefix="gymbox-apt-") as folder:
        os.chmod(folder, 0o755)  # apt downloads as its own user
        for needed in ("lists/partial", "cache/archives/partial", "debs"):
            Path(folder, needed).mkdir(parents=True)
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        Path(folder, "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n")
        private = (
            f"-oDir::Etc::sourcelist={folder}/sources.list",
            "-oDir::Etc::sourceparts=/dev/null",
            f"-oDir::State::lists={folder}/lists",
            f"-oDir::Cache={folder}/cache",
            "-oAPT::Sandbox::User=root",
        )
        apt("update", *private)
        packages = ("docker.io", "docker-cli", "docker-buildx", "docker-compose", "containerd")
        apt("download", *private, *packages, cwd=f"{folder}/debs")
        debs = sorted(str(path) for path in Path(folder, "debs").glob("*.deb"))
        apt("install", "--allow-downgrades", *debs, "iptables")


def debian_mirror(apt: Path, release: str) -> str | None:
    """The address of the mirror from which this machine takes `release`'s main component; None if it has none.

    Reads both forms of source: one-line (`.list`) and deb822 (`.sources`).
    """
    for path in sorted([apt / "sources.list", *apt.glob("sources.list.d/*")]):
        try:
            text = path.read_text()
        except OSError:
            continue
        entries = _deb822_sources(text) if path.suffix == ".sources" else _one_line_sources(text)
        for address, suites, components in entries:
            if release in suites and "main" in components:
                return address
    return None


def _one_line_sources(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("deb "):
            words = line[4:].strip()
            words = words.partition("]")[2] if words.startswith("[") else words
            match words.split():
                case [address, suite, *components]:
                    yield address, [suite], components


def _deb822_sources(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n\n"):
        fields: dict[str, list[str]] = {}
        name = ""
        for line in stanza.splitlines():
            if not line[:1].isspace() and ":" in line:  # else it continues the field above
                name, _, line = line.partition(":")
                name = name.strip().lower()
            fields.setdefault(name, []).extend(line.split())
        if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
            for address in fields.get("uris", []):
                yield address, fields.get("suites", []), fields.get("components", [])


def _start_daemon(deadline: float) -> None:
    for path in PID_FILES:
        _remove_if_stale(path)
    log = DAEMON_LOG if os.geteuid() == 0 else Path(tempfile.gettempdir(), DAEMON_LOG.name)
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            as_root("dockerd"), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _until_engine_runs(deadline, daemon)
    except SetupFailed as error:
        daemon.terminate()
        daemon.wait()
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SetupFailed(f"{error}; the end of {log}:\n{tail}") from error


def _remove_if_stale(pid_file: Path) -> None:
    """Remove a pid file whose process is gone, or is another program by now: dockerd would refuse to start."""
    try:
        pid = pid_file.read_text().strip()
    except OSError:
        return
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = ""
    if name not in ("dockerd", "containerd"):
        run(f"remove {pid_file}", as_root("rm", "-f", str(pid_file)))


def _until_engine_runs(deadline: float, daemon: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + deadline
    while not _engine_runs(timeout=5):
        if daemon is not None and daemon.poll() is not None:
            raise SetupFailed(f"dockerd ended with exit code {daemon.returncode}")
        if time.monotonic() > end:
            raise SetupFailed(f"dockerd did not answer in {deadline:g} s")
        time.sleep(0.1)


def _engine_runs(timeout: float) -> bool:
    """Whether the engine answers root; the user may not be allowed to ask it."""
    if os.geteuid() == 0:
        return engine_version(timeout) is not None
    return subprocess.run(as_root("docker", "version"), capture_output=True).returncode == 0


def apt(command: str, *arguments: str, cwd: str | None = None) -> None:
    options = ["-qq", "-y", "-oDPkg::Lock::Timeout=600", "-oAcquire::Retries=3", "-oAcquire::Languages=none"]
    if command == "install":
        options.append("--no-install-recommends")
    environment = as_root("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, command, *arguments)
    run(f"apt-get {command}", environment, cwd=cwd)


def as_root(*command: str) -> list[str]:
    if os.geteuid() == 0:
        return list(command)
    # without a terminal sudo could only wait for a password for ever
    return ["sudo", *([] if sys.stdin and sys.stdin.isatty() else ["-n"]), *command]


def run(step: str, command: list[str], *, cwd: str | None = None, stdin: str | None = None) -> None:
    """Run a command of this step.

    Raises:
        SetupFailed: it ended with another exit code than 0; has the last it printed.
    """
    done = subprocess.run(command, cwd=cwd, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise SetupFailed(f"could not {step} (exit code {done.returncode}): {tail}")


def os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def told(setup: Setup) -> int:
    """Print how it went; exit code 0 once what it is about is there, else 1."""
    print(setup)
    return 0 if setup.ready else 1


def first_that_works(*paths: str | None) -> str | None:
    """The first of these programs that tells its version; None where none does."""
    for path in filter(None, paths):
        try:
            done = subprocess.run([path, "--version"], capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return path
    return None


def main() -> int:
    """Exit code 0 once an engine answers, else 1."""
    return told(ensure_docker())


if __name__ == "__main__":
    sys.exit(main())
