"""Output: whatever models and tools have written, a terminal gets nothing that it would obey."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import gymbox.cli
import pytest
from gymbox.cli import main
from gymbox.cli.env import print_table
from gymbox.errors import ConfigError
from gymbox.logs import ConsoleLines, JsonLines
from gymbox.printable import printable, printable_json, printable_lines

from tests.unit.evaluation.conftest import line
from tests.unit.evaluation.conftest import run as run

HOSTILE = "\x1b]0;owned\x07\x1b[2J\rok\x9b31m\u202egnp\u2066\u061c\u200f\x7f\x00\x08"
Run = Callable[..., Path]


def unsafe_in(text: str) -> list[str]:
    """Control characters, marks of direction and halves of pairs, but for lines and tabs."""
    marks = [each for each in text if unicodedata.bidirectional(each) in BIDI or each in "\u200e\u200f\u061c"]
    others = [each for each in text if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")]
    return marks + [each for each in others if each not in "\n\t"]


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.fixture
def hostile(run: Run) -> Path:
    error = {"stage": "agent", "kind": "agent_failed", "detail": HOSTILE, "retryable": False, "logs": HOSTILE}
    output = [
        {"type": "function_call", "call_id": "c", "name": HOSTILE, "arguments": json.dumps({"x": HOSTILE})},
        {"type": "function_call_output", "call_id": "c", "output": HOSTILE},
        {"type": "message", "role": "assistant", "content": HOSTILE},
    ]
    metrics = {HOSTILE: 1.0}
    good = line(
        HOSTILE, 0, 1.0, response={"output": output}, metrics=metrics, reward_components=metrics, level=HOSTILE
    )
    return run(good, line("b", 0, error=error, level="x"), line(HOSTILE, 1, 0.0, level=HOSTILE), rows=2, repeats=2)


@pytest.mark.parametrize(
    "command",
    [
        ["show", "RUN"],
        ["show", "RUN", "b"],
        ["show", "RUN", "nothing"],
        ["run", "status", "RUN"],
        ["run", "tail", "RUN", "--no-follow"],
        ["run", "tail", "RUN", "--no-follow", "--json"],
        ["eval", "metrics", "RUN", "--tasks", "--by", "level"],
        ["eval", "metrics", "RUN", "--tasks", "--by", "level", "--json"],
        ["eval", "profile", "RUN"],
        ["eval", "compare", "RUN", "RUN"],
        ["export", "sft", "RUN", "-o", "NEW.jsonl"],
        ["export", "sft", "RUN", "-o", "NEW.jsonl", "--json"],
        ["export", "sft", "RUN", "-o", "NEW.jsonl", "--min-reward", "9"],
        ["export", "dpo", "RUN", "-o", "NEW.jsonl"],
    ],
    ids=" ".join,
)
def test_what_a_run_holds_is_never_obeyed_by_the_terminal(
    command: list[str], hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = (hostile / "rollouts.jsonl").read_bytes()
    named = {"RUN": str(hostile), "NEW.jsonl": str(tmp_path / "new.jsonl")}
    with pytest.raises(SystemExit):
        main([named.get(word, word) for word in command])
    said = capsys.readouterr()
    assert said.out + said.err
    assert unsafe_in(said.out + said.err) == []
    assert (hostile / "rollouts.jsonl").read_bytes() == exact


def test_files_have_the_exact_text(hostile: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["export", "sft", str(hostile), "-o", str(tmp_path / "new.jsonl"), "--min-reward", "0"])
    assert HOSTILE in json.loads((tmp_path / "new.jsonl").read_text().splitlines()[-1])["task"]


def test_json_that_is_printed_means_the_same(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "tail", str(hostile), "--no-follow", "--json"])
    printed = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert printed == [json.loads(each) for each in (hostile / "rollouts.jsonl").read_text().splitlines()]


def test_an_error_keeps_its_lines_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(b'{"a": "' + b"\x1b[2J" + b'"}\n')
    with pytest.raises(SystemExit) as caught:
        main(["eval", "metrics", f"{tmp_path}/\x1b[2J"])
    assert caught.value.code == 2
    assert unsafe_in(capsys.readouterr().err) == []
    assert printable_lines(f"one\n\ttwo{HOSTILE}").startswith("one\n\ttwo\\x1b]0;owned\\x07")
    assert str(ConfigError(HOSTILE)) == HOSTILE  # who catches it in a program has the exact text


def test_cells_of_tables_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [[HOSTILE]])
    said = capsys.readouterr().out
    assert "\\x1b]0;owned" in said and unsafe_in(said) == []


@pytest.mark.parametrize("form", [ConsoleLines, JsonLines])
def test_log_lines_are_escaped(form: type[logging.Formatter]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form())
    logger = logging.Logger("apart")
    logger.addHandler(handler)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it said %s", HOSTILE)
    assert unsafe_in(stream.getvalue()) == []
    if form is JsonLines:
        assert json.loads(stream.getvalue())["message"] == f"it said {HOSTILE}"


def test_every_unsafe_character_there_is_gets_an_escape() -> None:
    everything = "".join(map(chr, range(0x110000)))
    assert unsafe_in(printable_lines(everything)) == unsafe_in(printable_json(everything)) == []
    assert re.findall(r"[\t\n]", printable(everything, None)) == []
    kept = "plain ü 漢字 🙂 👩\u200d💻 ∞"
    assert printable(kept) == printable_lines(kept) == printable_json(kept) == kept


def test_commands_print_past_it_only_what_a_sandbox_was_asked_for() -> None:
    found = {
        (path.name, ast.unparse(node.args[0]))
        for path in Path(gymbox.cli.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.echo", "print")
    }
    assert {each for each in found if each[0] != "output.py"} == {
        ("__init__.py", "f'gymbox {__version__}'"),
        ("sandbox.py", "ask(controller, lambda client: client.logs(id, tail))"),
        ("sandbox.py", "result.stdout"),
        ("sandbox.py", "result.stderr"),
    }
