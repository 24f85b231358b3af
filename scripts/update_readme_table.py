"""Regenerate the table of environments in README.md from their manifests and datasets.

    update_readme_table.py [REPOSITORY]

Exit code 1 if README.md was changed (stage it and commit again) or cannot be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError

START, END = "<!-- environments:start -->", "<!-- environments:end -->"
HEAD = ["Environment", "Domain", "Description", "Tasks", "Verified", "License"]


def table(catalog: Catalog) -> str:
    """The environments of `catalog` by name, as a Markdown table."""
    rows = [HEAD, ["---"] * len(HEAD), *(cells(catalog[name]) for name in catalog.names())]
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


def with_table(readme: str, catalog: Catalog) -> str:
    """`readme` with the table between its markers.

    Raises:
        ConfigError: it does not have both markers, once and in this order.
    """
    if readme.count(START) != 1 or readme.count(END) != 1 or readme.index(START) > readme.index(END):
        raise ConfigError(f"README.md needs the lines {START} and {END}, once each and in this order")
    before, rest = readme.split(START)
    return f"{before}{START}\n{table(catalog)}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str]) -> int:
    repository = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    path = repository / "README.md"
    before = path.read_text(encoding="utf-8")
    try:
        after = with_table(before, Catalog([repository / "environments"]))
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
