"""Stock: the images that were built here, what each is for, and those that nobody needs any more."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from docker.errors import APIError

from gymbox.providers.builds import LABEL
from gymbox.providers.foreign import RUNTIME_LABEL
from gymbox.providers.runtime import NAME as RUNTIME_NAME
from gymbox.providers.runtime import runtime_volume

LONGEST_PROBE = 600
"""Seconds, after which a look into an image was left by a process that is no more."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image."""

    image: str
    """`name:digest of the content`."""
    id: str
    size: int
    """Bytes, layers that it shares with others included."""
    created: float
    """Unix seconds."""
    used_by: str
    """What it is kept for; `""` if nothing needs it."""


class Stock:
    """What was built here on one engine. All calls block."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def items(self, wanted: Mapping[str, Iterable[str]]) -> list[Item]:
        """Every image that was built here, the newest first.

        Args:
            wanted: the images that each environment has now, by the environment's name.
        """
        environments: dict[str, list[str]] = {}
        for name, tags in wanted.items():
            for tag in tags:
                environments.setdefault(tag, []).append(name)
        rows = self._engine.images(all=True)
        containers = Counter(row["ImageID"] for row in self._engine.containers(all=True))
        built = {tag: row for row in rows for tag in _built_tags(row)}
        first = {
            tag: ", ".join(sorted(environments.get(tag, ())))
            or _counted(containers[row["Id"]])
            or ("another name" if _has_another_name(row) else "")
            for tag, row in built.items()
        }
        # what nobody asks for is needed all the same where others are made of it, or run on it
        staying = {row["Id"] for row in rows if _stays(row, rows, first)}
        below = _ancestors(rows, staying)
        runtimes = {row["Labels"].get(RUNTIME_LABEL) for row in rows if row["Id"] in staying and row["Labels"]}
        items = [
            Item(
                tag,
                row["Id"],
                row["Size"],
                row["Created"],
                first[tag] or ("other images" if row["Id"] in below or tag in runtimes else ""),
            )
            for tag, row in built.items()
        ]
        return sorted(items, key=lambda item: (-item.created, item.image))

    def prune(self, wanted: Mapping[str, Iterable[str]], older_than: float, *, dry: bool = False) -> list[Item]:
        """Remove the images that nothing needs, the volumes of such runtimes with them, and tell which they were.

        What the engine knows to be in use it keeps, whatever was found here before.

        Args:
            older_than: seconds since an image was made.
            dry: remove nothing.
        """
        before = time.time() - older_than
        found = [item for item in self.items(wanted) if not item.used_by and item.created <= before]
        if dry:
            return found
        gone = [item for item in found if self._removed(item.image)]
        self._remove_volumes({tag for row in self._engine.images() for tag in _built_tags(row)})
        self._remove_probes()
        return gone

    def _removed(self, image: str) -> bool:
        try:
            self._engine.remove_image(image)
        except APIError:  # it is in use since, or someone else has removed it
            return False
        return True

    def _remove_volumes(self, images: Collection[str]) -> None:
        kept = {runtime_volume(image) for image in images}
        found = self._engine.volumes(filters={"label": f"{LABEL}={RUNTIME_NAME}"})["Volumes"] or []
        for name in {volume["Name"] for volume in found} - kept:
            with contextlib.suppress(APIError):  # a sandbox has it still
                self._engine.remove_volume(name)

    def _remove_probes(self) -> None:
        for row in self._engine.containers(all=True, filters={"label": f"{LABEL}=probe"}):
            if row["Created"] < time.time() - LONGEST_PROBE:
                with contextlib.suppress(APIError):
                    self._engine.remove_container(row["Id"], v=True, force=True)


def _built_tags(row: Mapping[str, Any]) -> list[str]:
    """The tags of an image that are of our making; an image of a container that was ours has the label, too."""
    name = (row["Labels"] or {}).get(LABEL)
    found = row["RepoTags"] or []
    return [tag for tag in found if name and re.fullmatch(f"{re.escape(name)}:[0-9a-f]{{16}}", tag)]


def _stays(row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], used_by: Mapping[str, str]) -> bool:
    """Whether an image is there for its own sake, rather than as a step on the way to another."""
    if _names(row):
        return _has_another_name(row) or any(used_by[tag] for tag in _built_tags(row))
    return all(other["ParentId"] != row["Id"] for other in rows)


def _has_another_name(row: Mapping[str, Any]) -> bool:
    return len(_built_tags(row)) < len(_names(row))


def _names(row: Mapping[str, Any]) -> list[str]:
    return [tag for tag in row["RepoTags"] or [] if tag != "<none>:<none>"]


def _ancestors(rows: Iterable[Mapping[str, Any]], ids: Iterable[str]) -> set[str]:
    """Ids of what these images are made of."""
    parents = {row["Id"]: row["ParentId"] for row in rows}
    found: set[str] = set()
    for id in ids:
        while (id := parents.get(id, "")) and id not in found:
            found.add(id)
    return found


def _counted(containers: int) -> str:
    return {0: "", 1: "1 container"}.get(containers, f"{containers} containers")
