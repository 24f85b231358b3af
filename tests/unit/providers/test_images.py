"""Tags follow content, and contexts hold what belongs into an image and nothing else."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed
from gymbox.providers.builds import Build, environment_builds, runtime_build
from gymbox.providers.images import Images, _last_step


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Environment]:
    def write(name: str = "plain", files: dict[str, str] | None = None, **image: Any) -> Environment:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "x", "image": image}))
        for path, content in {"server.py": "pass", **(files or {})}.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content.encode(errors="surrogateescape"))
        return Environment.load(folder)

    return write


def build(**changes: Any) -> Build:
    return Build(**{"name": "x", "dockerfile": "FROM y", "files": {"a": b"1"}, "arguments": {"A": "1"}, **changes})


def test_the_same_content_has_the_same_tag_and_the_same_context() -> None:
    assert build().tag == build().tag
    assert build().context().read() == build().context().read()


@pytest.mark.parametrize(
    "change",
    [
        {"dockerfile": "FROM z"},
        {"files": {"a": b"2"}},
        {"files": {"b": b"1"}},
        {"arguments": {"A": "2"}},
        {"labels": {"a": "1"}},
    ],
)
def test_any_other_content_has_another_tag(change: dict[str, Any]) -> None:
    assert build(**change).tag != build().tag


def test_what_follows_from_the_base_is_in_the_context_and_not_in_the_tag() -> None:
    assert build(follows={"b": b"2"}).tag == build().tag
    assert b"b" in build(follows={"b": b"2"}).context().read()


def test_a_new_base_image_makes_a_new_runtime() -> None:
    assert runtime_build("base:1", "sha256:a", {}).tag != runtime_build("base:1", "sha256:b", {}).tag


def test_the_runtime_holds_the_sandbox_side_and_its_lock_and_nothing_of_the_platform() -> None:
    files = runtime_build("base:1", "sha256:a", {}).files
    assert "gymbox_sandbox/__main__.py" in files and "requirements.lock" in files
    assert not [path for path in files if "__pycache__" in path or path.startswith("gymbox/")]


def test_tasks_tests_and_readme_never_enter_an_image(environment: Callable[..., Environment]) -> None:
    files = {"data/example.jsonl": "secret", "tests/test_it.py": "", "README.md": "", "more/words.txt": "w"}
    (last,) = environment_builds(environment(files=files), "runtime:1")
    with tarfile.open(fileobj=last.context()) as tar:
        names = tar.getnames()
    assert "files/server.py" in names and "files/more/words.txt" in names
    assert not [name for name in names if "data/" in name or "tests/" in name or "README" in name]


def test_a_script_stays_executable(environment: Callable[..., Environment]) -> None:
    (last,) = environment_builds(environment(files={"run.sh": "#!/bin/sh\n"}), "runtime:1")
    with tarfile.open(fileobj=last.context()) as tar:
        modes = {entry.name: entry.mode for entry in tar}
    assert (modes["files/run.sh"], modes["files/server.py"]) == (0o755, 0o644)


def test_packages_and_requirements_of_the_manifest_reach_the_build(environment: Callable[..., Environment]) -> None:
    (last,) = environment_builds(environment(packages=["git", "gcc"], pip=["idna==3.10"]), "runtime:1")
    assert last.arguments == {"BASE_IMAGE": "runtime:1", "PACKAGES": "git gcc"}
    assert last.files["requirements.txt"] == b"idna==3.10\n"


def test_any_name_of_an_environment_makes_a_legal_name_of_an_image(environment: Callable[..., Environment]) -> None:
    (last,) = environment_builds(environment(name="My._Env--2"), "runtime:1")
    assert last.name == "gymbox-env-my-env-2"


def test_an_environments_own_dockerfile_is_built_on_the_runtime_and_its_files_on_top(
    environment: Callable[..., Environment],
) -> None:
    files = {"Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN true\n"}
    own, last = environment_builds(environment(files=files, dockerfile="Dockerfile"), "runtime:1")
    assert own.arguments == {"BASE_IMAGE": "runtime:1"}
    assert last.arguments["BASE_IMAGE"] == own.tag


@pytest.mark.parametrize(
    ("files", "reason"),
    [({}, "there is no Dockerfile"), ({"Dockerfile": "\udcff"}, "is no Dockerfile")],
)
def test_a_dockerfile_that_cannot_work_is_refused_before_anything_is_built(
    files: dict[str, str], reason: str, environment: Callable[..., Environment]
) -> None:
    with pytest.raises(ImageBuildFailed, match=reason):
        environment_builds(environment(files=files, dockerfile="Dockerfile"), "runtime:1")


class Counting(Images):
    """Builds nothing, and counts how many it builds at once."""

    now = most = 0

    def builds(self, environment: Environment) -> list[Build]:
        return environment_builds(environment, "runtime:1")

    def _has(self, tag: str) -> bool:
        return False

    def _build(self, build: Build) -> None:
        with self.counting:
            self.now += 1
            self.most = max(self.most, self.now)
        self.together.wait()
        with self.counting:
            self.now -= 1

    counting = threading.Lock()
    together = threading.Barrier(2)


def test_no_more_images_are_built_at_once_than_it_was_made_for(
    environment: Callable[..., Environment], tmp_path: Path
) -> None:
    images = Counting(None, "base:1", {}, tmp_path / "builds", 60, builds=2)
    environments = [environment(name=f"plain{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(images.ensure, environments))) == 6
    assert images.most == 2


def test_the_log_of_a_failure_starts_with_the_step_that_failed() -> None:
    lines = ["Step 1/2 : FROM x", "fine", "Step 2/2 : RUN false", *(str(n) for n in range(100)), "it failed"]
    shown = _last_step(lines).splitlines()
    assert shown[:2] == ["Step 2/2 : RUN false", "…"]
    assert shown[-1] == "it failed"
    assert len(shown) < 70
