"""What a manifest may say of services, and what is taken of a compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.services import Service, of_compose
from pydantic import ValidationError


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Loads an environment with these services, from a folder with these files."""

    def load(services: Any, files: dict[str, str] | None = None, **manifest: Any) -> Environment:
        folder = tmp_path / "shop"
        for name, content in {"server.py": "", **(files or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        content = {"description": "For a test.", "services": services, **manifest}
        (folder / "environment.yaml").write_text(yaml.safe_dump(content))
        return Environment.load(folder)

    return load


def compose(tmp_path: Path, content: Any) -> Any:
    path = tmp_path / "compose.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return of_compose(path)


def test_a_service_is_built_from_its_folder_which_is_no_part_of_the_sandboxs_image(load: Any) -> None:
    files = {"services/db/Dockerfile": "FROM x", "services/db/start.sh": "#!/bin/sh", "data/rows.jsonl": ""}
    environment = load({"db": {"build": "services/db"}}, files)
    service = environment.manifest.services["db"]
    assert [path.name for path in environment.service_files(service)] == ["Dockerfile", "start.sh"]
    assert [path.name for path in environment.files()] == ["environment.yaml", "server.py"]
    before = environment.digest
    assert load({"db": {"build": "services/db"}}, {"services/db/start.sh": "#!/bin/sh -e"}).digest != before


@pytest.mark.parametrize(
    ("service", "why"),
    [
        ({}, "an image or a build"),
        ({"image": "x", "build": "services/x"}, "an image or a build"),
        ({"image": "x", "privileged": True}, "privileged"),
        ({"image": "x", "volumes": ["/:/host"]}, "volumes"),
        ({"image": "x", "network_mode": "host"}, "network_mode"),
        ({"image": "x", "cap_add": ["SYS_ADMIN"]}, "cap_add"),
        ({"image": "-v"}, "image"),
        ({"image": "x y"}, "image"),
        ({"build": "../elsewhere"}, "no folder below services/"),
        ({"build": "services/../.."}, "no folder below services/"),
        ({"build": "services"}, "no folder below services/"),
        ({"image": "x", "tmpfs": ["relative"]}, "no absolute path"),
        ({"image": "x", "tmpfs": ["/a/../proc"]}, "no absolute path"),
        ({"image": "x", "tmpfs": ["/data:exec"]}, "no absolute path"),
        ({"image": "x", "tmpfs": ["/proc/sys"]}, "the kernel's"),
        ({"image": "x", "env": {"A-B": "c"}}, "env"),
        ({"image": "x", "user": "a b"}, "user"),
        ({"image": "x", "ports": [0]}, "ports"),
        ({"image": "x", "health": {"test": []}}, "health"),
    ],
)
def test_what_a_service_cannot_have_is_refused(service: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Service.model_validate(service)


def test_names_networks_and_missing_files_are_checked_before_anything_starts(load: Any) -> None:
    with pytest.raises(ConfigError, match="services.Web_1"):
        load({"Web_1": {"image": "x"}})
    with pytest.raises(ConfigError, match="leave network: internal out"):
        load({"web": {"image": "x"}}, network="internal")
    with pytest.raises(ConfigError, match="service db: there is no services/db/Dockerfile"):
        load({"db": {"build": "services/db"}})
    with pytest.raises(ConfigError, match="there is no file compose.yaml"):
        load("compose.yaml")
    with pytest.raises(ConfigError, match="is no name of a compose file in this folder"):
        load("../compose.yaml")


def test_the_services_of_a_compose_file_come_in_the_order_of_their_needs(tmp_path: Path, load: Any) -> None:
    content = {
        "services": {
            "web": {
                "image": "web:1",
                "command": "serve --port 80",
                "depends_on": {"db": {"condition": "service_healthy"}},
                "expose": ["80/tcp", 81],
                "environment": ["A=1", "B=x=y"],
                "cpus": 0.5,
                "mem_limit": "1g",
                "pids_limit": 10,
                "tmpfs": "/var/cache",
            },
            "db": {
                "build": {"context": "./services/db"},
                "user": "postgres",
                "environment": {"N": 5},
                "healthcheck": {"test": "pg_isready", "interval": "2s", "retries": 5, "start_period": "1m"},
            },
        }
    }
    files = {"compose.yaml": yaml.safe_dump(content), "services/db/Dockerfile": "FROM x"}
    services = load("compose.yaml", files).manifest.services
    assert list(services) == ["db", "web"]
    web, db = services["web"], services["db"]
    assert (web.command, web.ports, web.env) == (["serve", "--port", "80"], [80, 81], {"A": "1", "B": "x=y"})
    assert (web.limits.cpus, web.limits.memory_mb, web.limits.pids, web.tmpfs) == (0.5, 1024, 10, ["/var/cache"])
    assert db.health is not None and (db.user, db.env, db.build) == ("postgres", {"N": "5"}, "services/db")
    assert (db.health.test, db.health.timeout, db.health.within) == (["/bin/sh", "-c", "pg_isready"], 5, 95)


def service(**found: Any) -> dict[str, Any]:
    return {"services": {"web": {"image": "x", **found}}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("- a list", "has no services"),
        ("services: [a]", "has no services"),
        ("{", "is no compose file"),
        ({**service(), "volumes": {"data": {}}}, "volumes: only services are taken"),
        (service(privileged=True), "web: privileged: not taken"),
        (service(volumes=["/:/host"], ports=["80:80"]), "web: ports, volumes: not taken"),
        (service(network_mode="host"), "network_mode: not taken"),
        (service(secrets=["key"]), "secrets: not taken"),
        (service(build={"context": ".", "args": {}}), "only context is taken"),
        (service(environment={"KEY": "${HOST_KEY}"}), "KEY: variables of the caller's are not taken"),
        (service(environment=["KEY"]), "KEY: variables of the caller's are not taken"),
        (service(depends_on=["db"]), "web depends on db, which there is not"),
        (service(depends_on=["web"]), "in a circle: web → web"),
        (service(healthcheck={"test": ["NONE"]}), "test is"),
        (service(healthcheck={"test": "x", "disable": True}), "disable: not taken"),
        (service(healthcheck={"test": "x", "interval": "soon"}), "'soon' is no duration"),
        (service(mem_limit="much"), "'much' is no size"),
        ({"services": {"web": "image"}}, "web must be a mapping"),
    ],
)
def test_the_rest_of_a_compose_file_is_refused_by_name(tmp_path: Path, content: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compose(tmp_path, content)


def test_durations_and_sizes_are_read_as_compose_writes_them(tmp_path: Path) -> None:
    check = {"test": ["CMD", "ok"], "interval": "1m30s", "timeout": "500ms", "retries": 2}
    found = compose(tmp_path, service(healthcheck=check, mem_limit=64 * 1024**2))["web"]
    assert found["health"] == {"test": ["ok"], "timeout": 0.5, "within": 181} and found["limits"] == {"memory_mb": 64}
