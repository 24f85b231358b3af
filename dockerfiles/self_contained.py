"""Make Python programs independent of the image they run in; runs while the runtime's image is built, and no later.

    self_contained.py runtime FOLDER            this system's Python, its standard library, libraries and loader
    self_contained.py packages FOLDER RUNTIME   what pip has put into FOLDER, to be used by the runtime there

What is left in a folder needs no file outside of it (and of the runtime), whatever the image has or lacks: the
interpreter names its own loader, every library is looked for in the folder, and the loader reads none of the files in
/etc by which an image could have it load others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*", "__pycache__")
LEFT_OUT_FILES = ("sitecustomize.py", "_tkinter*", "_test*", "_xxtestfuzz*")
ALWAYS = ("libgcc_s.so.1", "libstdc++.so.6")
"""Libraries that compiled packages take for granted."""
OWN_FILES = {b"/etc/ld.so.preload": "pre", b"/etc/ld.so.cache": "c", b"/etc/nsswitch.conf": "nss"}
"""What loader and libc read in /etc, and what they read in the runtime instead. A name takes the place of another in
the file, so it must be as long: the runtime's folder has the length that fits."""


def main(arguments: list[str]) -> int:
    """Exit code 1 if something is missing; it says what."""
    what, folder, *rest = arguments
    if what == "runtime":
        make_runtime(Path(folder))
    else:
        libraries, runtime = Path(folder, ".libraries"), Path(rest[0], "lib")
        contain(Path(folder), libraries=libraries, also=[runtime])
        check(Path(folder), [libraries, runtime], runtime / "ld.so")
    return 0


def make_runtime(folder: Path) -> None:
    libraries, interpreter = folder / "lib", folder / "bin" / "python3"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        libraries / version,
        symlinks=False,
        ignore_dangling_symlinks=True,
        ignore=shutil.ignore_patterns(*LEFT_OUT, *LEFT_OUT_FILES),
    )
    interpreter.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    loader = Path(done("patchelf", "--print-interpreter", str(interpreter)))
    found = linked(Path(os.path.realpath(sys.executable)))
    system = Path(next(path for path in found.values() if path)).parent
    for name in ALWAYS:
        shutil.copy(os.path.realpath(system / name), libraries / name)
    contain(folder, libraries=libraries, also=[])
    own_loader = libraries / "ld.so"
    shutil.copy(os.path.realpath(loader), own_loader)
    (folder / "nss").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    read_own_files([own_loader, libraries / "libc.so.6"], folder)
    # one after the other: patchelf 0.18 breaks a program of which it changes both at once
    done("patchelf", "--force-rpath", "--set-rpath", str(libraries), str(interpreter))
    done("patchelf", "--set-interpreter", str(own_loader), str(interpreter))
    check(folder, [libraries], own_loader)


def contain(folder: Path, *, libraries: Path, also: list[Path]) -> None:
    """Copy what the folder's programs and libraries are linked to into `libraries`, unless `also` has it, and have
    them look nowhere else."""
    libraries.mkdir(parents=True, exist_ok=True)
    binaries = [path for path in sorted(folder.rglob("*")) if is_elf(path)]
    own = {path.name for path in binaries}
    for binary in binaries:
        for name, path in linked(binary).items():
            if name in own or any((place / name).exists() for place in [libraries, *also]):
                continue
            if path is None:
                sys.exit(f"{binary.relative_to(folder)} needs {name}, which is not here")
            shutil.copy(os.path.realpath(path), libraries / name)
    for binary in binaries:
        # RPATH, not RUNPATH: it holds for what a library loads in turn, and before LD_LIBRARY_PATH
        before = [entry for entry in done("patchelf", "--print-rpath", str(binary)).split(":") if entry]
        if before or also:
            paths = [*before, *map(str, [libraries, *also])]
            done("patchelf", "--force-rpath", "--set-rpath", ":".join(dict.fromkeys(paths)), str(binary))


def read_own_files(files: list[Path], folder: Path) -> None:
    """Replace the names of files in /etc by such in the runtime's folder."""
    for name, own in OWN_FILES.items():
        replacement = f"{folder}/{own}".encode()
        if len(replacement) != len(name):
            sys.exit(f"{replacement!r} is not as long as {name!r}, so it cannot take its place")
        naming = [file for file in files if name + b"\0" in file.read_bytes()]
        if not naming:
            sys.exit(f"no loader that is known: nothing in it names {name.decode()}")
        for file in naming:
            file.write_bytes(file.read_bytes().replace(name + b"\0", replacement + b"\0"))


def check(folder: Path, places: list[Path], loader: Path) -> None:
    """Leave with exit code 1 if anything is linked to what is elsewhere, as the runtime's own loader sees it."""
    at_home = (str(folder), *map(str, places))
    for binary in sorted(folder.rglob("*")):
        if not is_elf(binary) or binary == loader:
            continue
        listing = [str(loader), "--library-path", ":".join(map(str, places)), "--list", str(binary)]
        for line in subprocess.run(listing, capture_output=True, text=True).stdout.splitlines():
            name, arrow, where = line.strip().partition(" => ")
            if arrow and not where.startswith(at_home) and "/" not in name:
                sys.exit(f"{binary.relative_to(folder)} is linked to what is elsewhere: {line.strip()}")


def linked(binary: Path) -> dict[str, str | None]:
    """The libraries that a file is linked to, by name, and where this system has them (None: nowhere)."""
    shown = subprocess.run(["ldd", str(binary)], capture_output=True, text=True).stdout
    found: dict[str, str | None] = {}
    for line in shown.splitlines():
        name, arrow, where = line.strip().partition(" => ")
        if arrow:
            found[name] = None if where == "not found" else where.partition(" (")[0]
    return found


def is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def done(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
