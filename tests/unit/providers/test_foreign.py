"""An image that knows nothing of us decides what commands see, and nothing of how the server runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError, ImageBuildFailed
from gymbox.providers import StartSpec
from gymbox.providers.builds import bases_of, starts_from
from gymbox.providers.container import container_config, server_command
from gymbox.providers.foreign import (
    RUNTIME_LABEL,
    Foreign,
    bases_in_registries,
    fault_of,
    foreign_builds,
    is_foreign,
    is_in_the_way,
    packed,
    with_accounts,
)
from gymbox_sandbox.options import User

HOSTILE = {
    "Os": "linux",
    "Architecture": "amd64",
    "Config": {
        "Labels": {RUNTIME_LABEL: "gymbox-runtime:0123"},
        "Env": ["PATH=/evil", "LD_PRELOAD=/evil.so", "PYTHONHOME=/evil", "EMPTY="],
        "Volumes": {"/data": {}, "/workspace": {}, "tmp/": {}},
        "Entrypoint": ["/evil"],
        "Cmd": ["more"],
        "User": "1234",
        "Healthcheck": {"Test": ["CMD", "/evil"]},
    },
}


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Environment]:
    def write(dockerfile: str | None = None, **image: Any) -> Environment:
        folder = tmp_path / "plain"
        folder.mkdir(exist_ok=True)
        if dockerfile is not None:
            image["dockerfile"] = "Dockerfile"
            (folder / "Dockerfile").write_text(dockerfile)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "x", "image": image}))
        (folder / "server.py").write_text("pass")
        return Environment.load(folder)

    return write


def fitted(inspected: dict[str, Any] = HOSTILE) -> dict[str, Any]:
    manifest = Manifest.model_validate({"name": "plain", "description": "For a test."})
    spec = StartSpec("box-1", Environment(Path("/environments/plain"), manifest), Path("/run/gymbox/box-1"))
    own = container_config(spec, "image:tag", "controller-1", server_command(spec.environment, User(1, 1)))
    foreign = Foreign.of(inspected)
    assert foreign is not None
    return foreign.fitted(own)


def mounts() -> dict[str, dict[str, Any]]:
    return {mount["Target"]: mount for mount in fitted()["HostConfig"]["Mounts"]}


def test_an_image_without_our_label_is_none_that_needs_anything() -> None:
    assert Foreign.of({"Config": {"Labels": None}}) is None
    assert Foreign.of({"Config": None}) is None


def test_entry_point_user_and_health_check_of_the_image_have_no_say() -> None:
    config = fitted()
    assert config["Entrypoint"][:3] == ["/opt/gymbox/rt/bin/python3", "-IBu", "-m"]
    assert config["Entrypoint"][-2:] == ["--variables", "/opt/gymbox/variables"]
    assert (config["Cmd"], config["User"], config["WorkingDir"]) == ([], "0:0", "/")
    assert config["Healthcheck"] == {"Test": ["NONE"]}


def test_no_variable_of_the_image_reaches_the_server() -> None:
    taken = [variable for variable in fitted()["Env"] if "=" not in variable]
    given = dict(variable.split("=", 1) for variable in fitted()["Env"] if "=" in variable)
    assert taken == ["LD_PRELOAD", "PYTHONHOME", "EMPTY"]
    assert set(given) == {"PATH", "LC_ALL", "OPENSSL_CONF"} and "evil" not in given["PATH"]


def test_the_runtime_is_mounted_read_only_and_never_filled_by_a_sandbox() -> None:
    runtime = mounts()["/opt/gymbox/rt"]
    assert (runtime["Source"], runtime["ReadOnly"]) == ("gymbox-runtime-0123", True)
    assert runtime["VolumeOptions"] == {"NoCopy": True}


def test_a_volume_of_the_image_is_in_memory_with_a_limit_and_what_a_sandbox_has_there_stays() -> None:
    tmpfs = fitted()["HostConfig"]["Tmpfs"]
    assert set(tmpfs) == {"/data", "/tmp", "/workspace", "/home/agent"}
    assert tmpfs["/data"] == tmpfs["/tmp"] and "size=256m" in tmpfs["/data"]
    assert "uid=10001" in tmpfs["/workspace"]
    assert set(mounts()) == {"/opt/gymbox/rt"}


def test_a_volume_of_the_image_where_the_workspace_is_on_disk_is_the_workspace() -> None:
    foreign = Foreign.of(HOSTILE)
    assert foreign is not None
    disk = {"Type": "volume", "Source": "disk", "Target": "/workspace"}
    host = {"Tmpfs": {"/tmp": "size=1m"}, "Mounts": [disk]}
    found = foreign.fitted({"Entrypoint": ["python"], "Env": [], "HostConfig": host})["HostConfig"]
    assert found["Mounts"][0] == disk and set(found["Tmpfs"]) == {"/tmp", "/data"}


def test_all_else_is_as_for_our_own_image() -> None:
    host = fitted()["HostConfig"]
    assert host["Privileged"] is False and host["ReadonlyRootfs"] is True and host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["KILL", "SETGID", "SETUID"] and len(host["SecurityOpt"]) == 2
    assert [mount["Type"] for mount in host["Mounts"]] == ["volume"]


@pytest.mark.parametrize(
    ("changes", "config", "fault"),
    [
        ({}, {}, None),
        ({}, {"Labels": {"gymbox.image": "x", "gymbox.base-recipe": "y", "other": "z"}}, None),
        ({}, {"Volumes": {"/data": {}, "/tmp": {}, "/workspace": {}, "/var/run": {}}}, None),
        ({"Architecture": "arm64"}, {}, "linux/arm64"),
        ({"Os": "windows"}, {}, "windows/amd64"),
        ({}, {"Labels": {"gymbox.request": "{}"}}, "gymbox.request"),
        ({}, {"OnBuild": ["RUN rm -rf /"]}, "ONBUILD"),
        ({}, {"Volumes": {"/opt/gymbox/rt/lib": {}}}, "VOLUME /opt/gymbox/rt/lib"),
    ],
)
def test_an_image_that_no_sandbox_can_have_is_refused_with_the_reason(
    changes: dict[str, Any], config: dict[str, Any], fault: str | None
) -> None:
    found = fault_of({"Os": "linux", "Architecture": "amd64", "Config": config, **changes}, "amd64")
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.parametrize(
    "path", ["/", "/opt", "opt/gymbox", "/opt/gymbox/rt", "/run", "//run/gymbox/", "/x/../opt/gymbox", "/home"]
)
def test_a_volume_over_what_is_ours_is_in_the_way(path: str) -> None:
    assert is_in_the_way(path)


@pytest.mark.parametrize("path", ["/data", "/opt/other", "/optional", "/home/agent", "/workspace", "/var/run/x"])
def test_any_other_volume_is_not(path: str) -> None:
    assert not is_in_the_way(path)


def test_our_users_are_added_where_neither_number_nor_name_is_taken() -> None:
    added = with_accounts("passwd", b"root:x:0:0::/root:/bin/ash\nagent:x:500:500::/:/bin/ash\n").decode()
    assert added.startswith("root:x:0:0::/root:/bin/ash\nagent:x:500:500::/:/bin/ash\ngymbox-agent:x:10001:10001:")
    assert with_accounts("group", b"taken:x:10001:\n").decode().splitlines()[0] == "taken:x:10001:"
    assert ":10001:" in with_accounts("group", b"taken:x:10001:\n").decode()
    assert "agent" not in with_accounts("group", b"taken:x:10001:\n").decode()


def test_an_image_without_accounts_gets_root_and_ours() -> None:
    names = [line.split(":")[0] for line in with_accounts("passwd", b"").decode().splitlines()]
    assert names == ["root", "agent", "gymbox-server"]


def test_variables_keep_their_bytes() -> None:
    assert packed(["A=1=2", "B=\udcff", "NAME"]) == b"A=1=2\0B=\xff\0"


DOCKERFILES = [
    ("FROM debian\n", ["debian"]),
    (
        "from --platform=linux/amd64 a:1 as Build\nFROM build\nFROM ${BASE_IMAGE} AS x\n",
        ["a:1", "a:1", "${BASE_IMAGE}"],
    ),
    ("# FROM nothing\nRUN echo FROM\n", []),
]


@pytest.mark.parametrize(("text", "bases"), DOCKERFILES)
def test_a_dockerfile_says_what_it_is_based_on(text: str, bases: list[str]) -> None:
    assert bases_of(text) == bases
    assert starts_from(text) == (bases[-1] if bases else "")


def test_what_a_base_or_a_dockerfile_of_its_own_makes_foreign(environment: Callable[..., Environment]) -> None:
    assert is_foreign(environment(base="alpine:3.22"))
    assert not is_foreign(environment())
    assert is_foreign(environment("FROM alpine\n"))
    assert is_foreign(environment("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n", base="alpine"))
    assert not is_foreign(environment("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n"))


def test_what_is_pulled_is_named_and_nothing_else(environment: Callable[..., Environment]) -> None:
    dockerfile = "ARG BASE_IMAGE\nFROM scratch AS a\nFROM gcc:14 AS b\nFROM $OTHER\nFROM ${BASE_IMAGE}\n"
    assert bases_in_registries(environment(dockerfile, base="alpine")) == ["gcc:14", "alpine"]
    assert bases_in_registries(environment(base="alpine")) == ["alpine"]


def test_each_wish_of_a_manifest_is_an_image_of_its_own_and_the_last_has_the_files(
    environment: Callable[..., Environment],
) -> None:
    full = environment("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n", base="alpine", packages=["git"], pip=["idna==3.10"])
    own, apt, pip, last = foreign_builds(full, "gymbox-runtime:1", "sha256:a")
    assert own.arguments == {"BASE_IMAGE": "alpine"}
    assert apt.arguments == {"BASE_IMAGE": own.tag, "PACKAGES": "git"}
    assert pip.arguments == {"BASE_IMAGE": "gymbox-runtime:1"} and pip.files == {"requirements.txt": b"idna==3.10\n"}
    assert last.arguments == {"BASE_IMAGE": apt.tag, "PACKAGES_IMAGE": pip.tag}
    assert last.labels == {RUNTIME_LABEL: "gymbox-runtime:1"} and "files/server.py" in last.files


def test_another_base_or_runtime_makes_another_image(environment: Callable[..., Environment]) -> None:
    plain = environment(base="alpine")
    tags = {foreign_builds(plain, runtime, id)[-1].tag for runtime in ("r:1", "r:2") for id in ("a", "b")}
    assert len(tags) == 4


def test_a_base_that_the_dockerfile_does_not_use_is_refused(environment: Callable[..., Environment]) -> None:
    with pytest.raises(ImageBuildFailed, match=r"starts from debian, so there is no use for image\.base"):
        foreign_builds(environment("FROM debian\n", base="alpine"), "r:1", "")


@pytest.mark.parametrize(
    "base",
    [
        "alpine",
        "alpine:3.22",
        "localhost:5000/a/b_c-d:V1.2",
        "ghcr.io/some/thing@sha256:" + "a" * 64,
        "debian:trixie-slim@sha256:" + "0" * 64,
    ],
)
def test_images_are_named_as_docker_names_them(base: str, environment: Callable[..., Environment]) -> None:
    assert environment(base=base).manifest.image.base == base


@pytest.mark.parametrize("base", ["", "Alpine", "a b", "a@sha256:1", "-a", "a:", "http://a/b", "a\n", "$(id)", "../a"])
def test_what_names_no_image_is_refused(base: str, environment: Callable[..., Environment]) -> None:
    with pytest.raises(ConfigError, match=r"image\.base"):
        environment(base=base)
