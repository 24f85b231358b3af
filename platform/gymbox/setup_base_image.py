"""Setup base image: get `debian:trixie-slim`, from a registry or, where none is reached, from Debian's packages.

Standard library only: `python -m gymbox.setup_base_image` runs before anything else is installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from gymbox.setup_docker import (
    Say,
    Setup,
    SetupFailed,
    apt,
    as_root,
    debian_mirror,
    engine_version,
    os_release,
    run,
    to_stderr,
    told,
)

BASE_IMAGE = "debian:trixie-slim"
RECIPE_LABEL = "gymbox.base-recipe"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
IMAGE_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

BOOTSTRAP = (
    "--variant=minbase",
    "--include=ca-certificates",
    "--aptopt=Acquire::Languages none",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/lintian/*",
)
CUSTOMIZE = r"""
set -eu
printf 'Acquire::Languages "none";\nAcquire::GzipIndexes "true";\n' > "$1/etc/apt/apt.conf.d/docker-slim"
printf '#!/bin/sh\nexit 101\n' > "$1/usr/sbin/policy-rc.d"
chmod 755 "$1/usr/sbin/policy-rc.d"
rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/cache/apt/*.bin "$1"/var/log/* "$1"/var/lib/apt/lists/*
mkdir -p "$1/var/lib/apt/lists/partial" "$1/var/cache/apt/archives/partial"
"""
# the machine's own bundle, so that pip and apt work in builds behind a proxy that signs for itself
TRUSTING = (
    f"ENV SSL_CERT_FILE={IMAGE_CA_BUNDLE}",
    f"ENV PIP_CERT={IMAGE_CA_BUNDLE}",
    f"ENV REQUESTS_CA_BUNDLE={IMAGE_CA_BUNDLE}",
    "ENV LANG=C.UTF-8",
    'CMD ["bash"]',
)


def ensure_base_image(*, say: Say = to_stderr) -> Setup:
    """See to it that the engine has `debian:trixie-slim`: there already, pulled, or made from Debian's packages.

    A made one holds this machine's CA bundle and is made again when that bundle changes. Idempotent. Needs an engine
    (`ensure_docker`). Never raises for what the machine lacks.
    """
    if not engine_version():
        start = f"{shlex.quote(sys.executable)} -m gymbox.setup_docker"
        return Setup(False, f"no Docker engine answers, to get {BASE_IMAGE} for", (start,))
    recipe = _recipe()
    found = _recipe_of_image()
    if found in ("", recipe):
        return Setup(True, f"{BASE_IMAGE} is there")
    if found is None:
        say(f"gymbox: pulling {BASE_IMAGE}")
        pull = subprocess.run(["docker", "pull", "-q", BASE_IMAGE], capture_output=True, text=True)
        if pull.returncode == 0:
            return Setup(True, f"{BASE_IMAGE} was pulled")
        say(f"gymbox: it cannot be pulled ({pull.stderr.strip()[-200:]})")
    say(f"gymbox: making {BASE_IMAGE} from Debian's packages (a minute or two)")
    try:
        _bootstrap(recipe)
    except SetupFailed as error:
        ways = (
            f"on a machine that can: docker pull {BASE_IMAGE} && docker save {BASE_IMAGE}, then docker load it here",
            f"docker tag YOUR_MIRROR/{BASE_IMAGE} {BASE_IMAGE}",
        )
        return Setup(False, f"{BASE_IMAGE} can neither be pulled nor made: {error}", ways)
    return Setup(True, f"{BASE_IMAGE} was made from Debian's packages")


def _recipe_of_image() -> str | None:
    """The recipe of the image that is there: "" if it came from elsewhere, None if there is no image."""
    command = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{RECIPE_LABEL}"}}}}', BASE_IMAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _recipe() -> str:
    """A digest of everything that decides what a made image holds, but for the versions of Debian's packages."""
    sha = hashlib.sha256("\n".join([*BOOTSTRAP, CUSTOMIZE, *TRUSTING]).encode())
    if CA_BUNDLE.exists():
        sha.update(CA_BUNDLE.read_bytes())
    return sha.hexdigest()[:16]


def _bootstrap(recipe: str) -> None:
    suite = BASE_IMAGE.partition(":")[2].removesuffix("-slim")
    apt("update")
    apt("install", "mmdebstrap", "debian-archive-keyring")
    release = os_release().get("VERSION_CODENAME", "")
    mirror = debian_mirror(Path("/etc/apt"), release) if os_release().get("ID") == "debian" else None
    with tempfile.TemporaryDirectory(prefix="gymbox-base-") as folder:
        script, rootfs = Path(folder, "customize"), Path(folder, "rootfs.tar")
        script.write_text(CUSTOMIZE)
        hooks = [f'--customize-hook=sh {script} "$1"']
        if CA_BUNDLE.exists():
            hooks.append(f"--customize-hook=upload {CA_BUNDLE} {IMAGE_CA_BUNDLE}")
        source = [f"deb {mirror} {suite} main"] if mirror else []
        command = as_root("mmdebstrap", "--quiet", *BOOTSTRAP, *hooks, suite, str(rootfs), *source)
        run(f"make a {suite} root file system", command)
        if os.geteuid() != 0:
            run("hand it over", as_root("chown", str(os.getuid()), str(rootfs)))
        changes = [f"LABEL {RECIPE_LABEL}={recipe}", *TRUSTING]
        options = [word for change in changes for word in ("--change", change)]
        run(f"import {BASE_IMAGE}", ["docker", "import", *options, str(rootfs), BASE_IMAGE])


def main() -> int:
    """Exit code 0 once the image is there, else 1."""
    return told(ensure_base_image())


if __name__ == "__main__":
    sys.exit(main())
