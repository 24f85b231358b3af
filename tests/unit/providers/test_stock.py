"""What an image is kept for, and what of all this goes, from what an engine lists."""

from __future__ import annotations

import time
from typing import Any

from docker.errors import APIError
from gymbox.providers.stock import Stock

RUNTIME, OLD, NEW = "gymbox-runtime:" + "0" * 16, "gymbox-env-a:" + "1" * 16, "gymbox-env-a:" + "2" * 16


def row(id: str, parent: str = "", *tags: str, label: str | None = None, runtime: str | None = None) -> dict[str, Any]:
    labels = {"gymbox.image": label or tags[0].partition(":")[0]} if tags or label else None
    if labels and runtime:
        labels["gymbox.runtime"] = runtime
    return {"Id": id, "ParentId": parent, "RepoTags": list(tags) or None, "Labels": labels, "Size": 1, "Created": 1}


class Listing:
    """An engine that has what a test says, and takes note of what is removed; it keeps what is called busy."""

    def __init__(self, rows: list[dict[str, Any]], used: list[str]) -> None:
        self._rows = rows
        self._used = used
        self.removed: list[str] = []

    def images(self, all: bool = False) -> list[dict[str, Any]]:
        return self._rows

    def containers(self, all: bool, filters: dict[str, str] | None = None) -> list[dict[str, Any]]:
        if filters:
            ages = {"probe-busy": 3600, "probe-old": 3600, "probe-new": 0}
            return [{"Id": id, "Created": time.time() - age} for id, age in ages.items()]
        return [{"ImageID": id} for id in self._used]

    def volumes(self, filters: dict[str, str]) -> dict[str, Any]:
        return {"Volumes": [{"Name": name} for name in ("gymbox-runtime-busy", "gymbox-runtime-1", volume(RUNTIME))]}

    def remove_image(self, image: str) -> None:
        self._remove(image)

    def remove_volume(self, name: str) -> None:
        self._remove(name)

    def remove_container(self, id: str, v: bool, force: bool) -> None:
        self._remove(id)

    def _remove(self, name: str) -> None:
        if name.endswith(("busy", NEW)):
            raise APIError("conflict")
        self.removed.append(name)


def volume(image: str) -> str:
    return image.replace(":", "-")


def kept_for(rows: list[dict[str, Any]], used: tuple[str, ...] = (), **wanted: set[str]) -> dict[str, str]:
    return {item.image: item.used_by for item in Stock(Listing(rows, list(used))).items(wanted)}


def test_what_an_environment_has_now_is_kept_for_it_and_what_it_had_is_not() -> None:
    assert kept_for([row("1", "", OLD), row("2", "", NEW)], a={NEW}) == {OLD: "", NEW: "a"}


def test_what_containers_run_from_is_kept() -> None:
    assert kept_for([row("1", "", OLD), row("2", "", NEW)], ("1", "1", "2")) == {
        OLD: "2 containers",
        NEW: "1 container",
    }


def test_what_is_not_of_our_making_is_not_even_listed() -> None:
    rows = [row("1", "", "debian:trixie"), row("2", "", "gymbox-snapshot:mine", label="gymbox-env-a"), row("3")]
    assert kept_for(rows) == {}


def test_what_another_image_is_made_of_is_kept_as_long_as_that_is() -> None:
    chain = [row("1", "", OLD), row("step", "1"), row("2", "step", "someones:image")]
    assert kept_for(chain) == {OLD: "other images"}
    assert kept_for([*chain[:2], row("2", "step", NEW)]) == {OLD: "", NEW: ""}


def test_a_snapshot_without_a_name_keeps_what_it_is_made_of() -> None:
    assert kept_for([row("1", "", OLD), row("2", "1", label="gymbox-env-a")]) == {OLD: "other images"}


def test_a_runtime_is_kept_as_long_as_an_image_runs_on_it() -> None:
    rows = [row("r", "", RUNTIME), row("1", "", OLD, runtime=RUNTIME)]
    assert kept_for(rows, a={OLD}) == {RUNTIME: "other images", OLD: "a"}
    assert kept_for(rows) == {RUNTIME: "", OLD: ""}


def test_what_is_not_needed_goes_with_its_volume_and_what_the_engine_keeps_is_not_told_as_gone() -> None:
    engine = Listing([row("1", "", OLD), row("2", "", NEW), row("r", "", RUNTIME)], ["r"])
    gone = Stock(engine).prune({}, 60)
    assert [item.image for item in gone] == [OLD]
    assert engine.removed == [OLD, "gymbox-runtime-1", "probe-old"]


def test_what_is_young_stays_and_a_dry_run_removes_nothing() -> None:
    engine = Listing([row("1", "", OLD)], [])
    assert Stock(engine).prune({}, time.time() + 60) == []
    assert [item.image for item in Stock(engine).prune({}, 0, dry=True)] == [OLD]
    assert OLD not in engine.removed
