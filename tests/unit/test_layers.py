"""Who may import whom: docs/design.md, "Layers"."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "platform" / "gymbox"
BOTTOM = {
    *("errors", "http", "environment", "guard", "lifetime", "logs", "network", "redaction", "serving", "sockets"),
    *("api_page", "printable", "requests", "services"),
}
ISLANDS = {
    "controller": {"controller"},
    "proxy": {"proxy"},
    "providers": {"providers"},
    "egress": {"egress"},
    "evaluation": {"evaluation"},
    "reports": {"reports"},
    "exports": {"exports"},
    "e2b": {"e2b"},
    "rollouts": {
        *(
            "agents",
            "models",
            "rollout",
            "runner",
            "runner_settings",
            "players",
            "plan",
            "merge",
            "results",
            "run_manifest",
            "scores",
            "inputs",
            "progress",
        ),
        *("dataset", "dataset_index", "datasets", "row_check", "faults", "checks", "code_version"),
        *(
            "client",
            "sandbox_calls",
            "sandbox_client",
            "streamed_files",
            "held_sandbox",
            "background",
            "execution",
            "judge",
            "run_control",
            "budget",
            "cancels",
            "artifacts",
        ),
    },
}
CONTRACTS = {
    "controller": {"providers"},
    "providers": {"setup_base_image"},
    "evaluation": {"results", "run_manifest", "rollout", "plan", "runner_settings", "artifacts"},
    "reports": {"evaluation", "results", "models"},
    "exports": {"evaluation", "results", "run_manifest", "models", "datasets", "row_check", "faults"},
    "e2b": {"client", "sandbox_client", "streamed_files", "execution", "background"},
}
"""What a provider is stands in `gymbox.providers` itself; that much the controller imports, and no provider. The base
image is named where it is made. An evaluation reads what a run has written; a report shows, and an export tells in the
formats of others, what both know. What speaks E2B's protocols is a program of the client's, like anybody's."""
TOP = {"cli", "config", "embedded", "local_controller", "runs", "sdk"}
STANDALONE = {"setup_docker", "setup_base_image", "setup_bubblewrap", "setup_chromium", "setup_docker_registry"}


def imported(path: Path) -> set[str]:
    """Dotted names of every module that `path` imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def parts_of_gymbox(path: Path) -> set[str]:
    """First names below `gymbox` that `path` imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("gymbox.")} & {
        entry.stem for entry in PLATFORM.iterdir()
    }


def part(path: Path) -> str:
    return path.relative_to(PLATFORM).parts[0].removesuffix(".py")


PLATFORM_FILES = sorted(PLATFORM.rglob("*.py"))


def test_the_sandbox_side_never_imports_gymbox() -> None:
    for path in (ROOT / "sandboxes" / "gymbox_sandbox").rglob("*.py"):
        assert not {name for name in imported(path) if name == "gymbox" or name.startswith("gymbox.")}, path


def test_environments_import_only_the_sandbox_side() -> None:
    for path in (ROOT / "environments").glob("*/*.py"):
        assert not {name for name in imported(path) if name == "gymbox" or name.startswith("gymbox.")}, path


def test_every_part_of_gymbox_has_its_place_in_the_layers() -> None:
    known = BOTTOM | TOP | STANDALONE | set().union(*ISLANDS.values()) | {"__init__", "__main__", "conf"}
    found = {entry.stem for entry in PLATFORM.iterdir() if entry.suffix in ("", ".py") and entry.stem != "__pycache__"}
    assert found <= known


@pytest.mark.parametrize("path", PLATFORM_FILES, ids=lambda path: str(path.relative_to(PLATFORM)))
def test_a_file_imports_only_what_its_layer_may(path: Path) -> None:
    mine, uses = part(path), parts_of_gymbox(path)
    if mine in TOP | STANDALONE | {"__init__", "__main__", "conf"}:
        return
    island = next((members for members in ISLANDS.values() if mine in members), set())
    allowed = BOTTOM | island | CONTRACTS.get(mine, set())
    assert uses <= allowed, f"{mine} may not import {uses - allowed}"


def test_the_controller_imports_no_provider() -> None:
    providers = {f"gymbox.providers.{path.stem}" for path in (PLATFORM / "providers").glob("[!_]*.py")}
    for path in (PLATFORM / "controller").glob("*.py"):
        assert not imported(path) & providers, path


def test_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
