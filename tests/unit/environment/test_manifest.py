"""Manifest: what is kept of a workspace must be something, of one task, and inside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.environment import Environment
from gymbox.errors import ConfigError


def load(folder: Path, text: str) -> Environment:
    (folder / "environment.yaml").write_text(f"description: x\n{text}")
    return Environment.load(folder)


def test_paths_and_patterns_are_artifacts(tmp_path: Path) -> None:
    manifest = load(tmp_path, "reverify: artifacts\nartifacts: [a.txt, src/**/*.py]\n").manifest
    assert manifest.artifacts == ["a.txt", "src/**/*.py"]
    assert (manifest.artifact_limits.megabytes, manifest.artifact_limits.files) == (64, 10_000)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", ".", "", "a//b", "a/"])
def test_what_is_not_in_the_workspace_is_none(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="is no path in the workspace"):
        load(tmp_path, f"artifacts: ['{path}']\n")


def test_what_is_to_be_scored_again_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs to know which: add artifacts"):
        load(tmp_path, "reverify: artifacts\n")


def test_tasks_that_share_a_workspace_have_none_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs sessions: 1"):
        load(tmp_path, "reverify: artifacts\nartifacts: [a]\nsessions: 4\n")
