"""Logs: ids on every line, secrets on none."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from gymbox import logs

log = logging.getLogger("gymbox.test")


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before[0], before[1]


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


async def test_lines_carry_the_ids_they_are_about_also_in_tasks_started_there(written):
    logs.setup(form="json", stream=written)
    with logs.about(sandbox="s1"), logs.about(rollout="r1"):
        await asyncio.create_task(say("inside"))
    log.info("outside")

    inside, outside = map(json.loads, written.getvalue().splitlines())
    assert (inside["message"], inside["sandbox"], inside["rollout"], inside["level"]) == ("inside", "s1", "r1", "info")
    assert "sandbox" not in outside


async def say(text: str) -> None:
    log.info(text)


def test_a_console_line_reads_well(written):
    logs.setup(stream=written)
    with logs.about(sandbox="s1"):
        log.warning("reaping %s", "s1")

    assert written.getvalue().endswith("warning reaping s1  (sandbox=s1)\n")


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_in_no_line_and_no_traceback(written, form):
    secret = "hunter/2 hunter+2"
    logs.hide(secret)
    logs.setup(form=form, stream=written)
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    try:
        raise ValueError(f"password {secret}")
    except ValueError:
        log.exception("with %s, %s and %s", secret, quote(secret, safe=""), encoded)

    assert "hunter" not in written.getvalue()
    assert encoded not in written.getvalue()
    assert written.getvalue().count("[redacted ") == 4


@pytest.mark.parametrize(
    "secret",
    [
        "gbx_sbx_0123456789abcdef",
        "sk-0123456789abcdef0123",
        "AKIA0123456789ABCDEF",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_hidden_unasked(secret):
    assert secret not in logs.redact(f"it is {secret}.")


def test_the_value_of_a_bearer_header_is_hidden_and_equal_ones_look_equal():
    first, second = logs.redact("Bearer abcdefgh12345678"), logs.redact("bearer abcdefgh12345678")

    assert "abcdefgh" not in first + second
    assert first.split("Bearer ")[1] == second.split("bearer ")[1]


def test_short_values_are_no_secrets():
    logs.hide("a")
    assert logs.redact("a cat") == "a cat"


def test_a_json_line_holds_the_traceback(written):
    logs.setup(form="json", stream=written)
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        log.exception("failed")

    assert "ZeroDivisionError" in json.loads(written.getvalue())["traceback"]


def messages_in(path):
    return [json.loads(line)["message"] for line in path.read_text().splitlines()]


def test_a_file_gets_what_is_logged_meanwhile_and_is_gone_on_with(tmp_path):
    logs.hide("hunter2-hunter2")
    for text in ("first", "second hunter2-hunter2"):
        with logs.Scope() as scope:
            with scope.into(tmp_path / "run.log"):
                log.warning(text)
            log.warning("too late")
        log.warning("outside")

    first, second = messages_in(tmp_path / "run.log")
    assert first == "first"
    assert second.startswith("second [redacted ")


async def test_a_file_has_the_lines_of_its_own_work_alone(tmp_path):
    begun = asyncio.Barrier(3)

    async def part(name):
        await asyncio.to_thread(log.warning, f"{name} in a thread")
        log.warning(f"{name} in a task")

    async def work(name):
        with logs.Scope() as scope, scope.into(tmp_path / name):
            await begun.wait()  # now both files are open, and written to by whoever began them
            await begun.wait()
            await asyncio.create_task(part(name))
            log.warning(f"{name} itself")

    both = asyncio.gather(work("one"), work("two"))
    await begun.wait()
    log.warning("whoever began them")
    await begun.wait()
    await both

    for name in ("one", "two"):
        assert messages_in(tmp_path / name) == [f"{name} in a thread", f"{name} in a task", f"{name} itself"]


def test_work_inside_other_work_has_its_lines_for_itself(tmp_path):
    with logs.Scope() as outer, outer.into(tmp_path / "outer"):
        with logs.Scope() as inner, inner.into(tmp_path / "inner"):
            log.warning("inside")
        log.warning("around")

    assert messages_in(tmp_path / "outer") == ["around"]
    assert messages_in(tmp_path / "inner") == ["inside"]


def test_a_file_that_takes_no_more_is_no_error(capsys):
    with logs.Scope() as scope, scope.into(Path("/dev/full")):
        log.warning("lost")

    assert capsys.readouterr().err == ""


def test_a_program_without_logging_sees_which_lines_are_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, root = logging.getLogger("gymbox"), logging.getLogger()
    monkeypatch.setattr(ours, "handlers", [])
    root.handlers[:] = []
    for _ in range(2):
        logs.in_programs()
    logs.hide("hunter2-hunter2")
    log.info("not this")
    log.warning("the key %s", "hunter2-hunter2")
    assert capsys.readouterr().err == f"gymbox: warning: the key {logs.redact('hunter2-hunter2')}\n"


@pytest.mark.parametrize("name", ["", "gymbox"])
def test_logging_of_a_programs_own_takes_the_place_of_what_is_printed(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("gymbox"), "handlers", [])
    logging.getLogger().handlers[:] = []
    logs.in_programs()
    logging.getLogger(name).addHandler(logging.NullHandler())
    log.warning("of this it shall know itself")
    assert capsys.readouterr().err == ""


async def test_what_is_waited_for_is_said_once_and_only_where_it_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    waits = logs.Waits(logging.getLogger("gymbox.test"))
    with waits.of("waiting for what is there", moment=0):
        pass
    for _ in range(2):
        with waits.of("waiting for the service", moment=0):
            await asyncio.sleep(0.001)  # what is due is done first
    with waits.of("waiting for what comes soon", moment=60):
        await asyncio.sleep(0.001)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "waiting for the service")
    ]
