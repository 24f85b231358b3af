"""Regenerate the table of environments in README.md from their manifests and datasets.

    update_readme_table.py [REPOSITORY]

Listed is what git tracks, staged files too; an environment that somebody has under way is left out and named in the
output. Without git all are listed. Exit code 1 if README.md was changed (stage it and commit again) or cannot be.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError

START, END = "<!-- environments:start -->", "<!-- environments:end -->"
HEAD = ["Environment", "Domain", "Description", "Tasks", "Verified", "License"]


def table(environments: list[Environment]) -> str:
    """These environments as a Markdown table."""
    rows = [HEAD, ["---"] * len(HEAD), *map(cells, environments)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cells(environment: Environment) -> list[str]:
    manifest = environment.manifest
    link = f"[{environment.name}](environments/{environment.name})"
    texts = [manifest.domain, manifest.description, str(tasks(environment)), "yes" if manifest.verified else "no"]
    return [link, *(" ".join(text.replace("|", "\\|").split()) for text in [*texts, manifest.license])]


def tasks(environment: Environment) -> int:
    """How many rows its dataset has; 0 without one."""
    if not environment.dataset.is_file():
        return 0
    return sum(1 for line in environment.dataset.read_bytes().split(b"\n") if line.strip())


def tracked(repository: Path) -> set[str] | None:
    """Names of the environments that git tracks; None where there is no git."""
    command = ["git", "ls-files", "-z", "environments/*/environment.yaml"]
    try:
        listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {Path(path).parent.name for path in listed.split("\0") if path}


def with_table(readme: str, environments: list[Environment]) -> str:
    """`readme` with the table between its markers.

    Raises:
        ConfigError: it does not have both markers, once and in this order.
    """
    if readme.count(START) != 1 or readme.count(END) != 1 or readme.index(START) > readme.index(END):
        raise ConfigError(f"README.md needs the lines {START} and {END}, once each and in this order")
    before, rest = readme.split(START)
    return f"{before}{START}\n{table(environments)}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str]) -> int:
    repository = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    path = repository / "README.md"
    before = path.read_text(encoding="utf-8")
    catalog, known = Catalog([repository / "environments"]), tracked(repository)
    names = [name for name in catalog.names() if known is None or name in known]
    if left_out := [name for name in catalog.names() if name not in names]:
        print(f"README.md: not listed, since git does not track it: {', '.join(left_out)} (git add environments/NAME)")
    try:
        after = with_table(before, [catalog[name] for name in names])
    except ConfigError as error:
        print(error)
        return 1
    if after == before:
        return 0
    path.write_text(after, encoding="utf-8")
    print("README.md: updated the table of environments")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
