"""Skills: what a folder of them must be, and what is told of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.agents import skills as module
from gymbox.agents.single_turn import SingleTurn
from gymbox.agents.skills import Skills
from gymbox.agents.tool_loop import ToolLoop
from gymbox.errors import ConfigError
from pydantic import ValidationError

HEAD = "---\nname: {name}\ndescription: Use it to add.\n---\n"
Make = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Make:
    """A folder of skills, each with these files."""

    def make(**files: str | bytes) -> Path:
        root = tmp_path / "skills"
        for place, content in ({"adding/SKILL.md": HEAD.format(name="adding")} | files).items():
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return make


def test_a_result_says_which_skills_there_were_as_nemo_gyms_do(folder: Make) -> None:
    second = "---\r\nname: b2\r\ndescription: |\r\n  Two.\r\nversion: 1.5\r\nlicense: MIT\r\n---\r\nDo."
    third = "\ufeff---\nname: c-3\ndescription: Three.\nmetadata: {version: 2, author: me}\n---\n"
    skills = Skills.load(folder(**{"b2/SKILL.md": second, "c-3/SKILL.md": third}))

    assert skills.ref == {
        "path": skills.path,
        "hash": skills.hash,
        "skills": [
            {"name": "adding", "description": "Use it to add."},
            {"name": "b2", "description": "Two.\n", "version": "1.5"},
            {"name": "c-3", "description": "Three.", "version": "2"},
        ],
    }
    assert len(skills.hash) == 12 and int(skills.hash, 16)


def test_the_digest_is_of_names_bytes_and_modes_and_not_of_the_place(folder: Make, tmp_path: Path) -> None:
    root = folder(**{"adding/run.sh": "echo"})
    before = Skills.load(root)
    before.write_to(tmp_path / "copy")
    assert Skills.load(tmp_path / "copy").hash == before.hash

    (root / "adding" / "run.sh").chmod(0o755)
    executable = Skills.load(root)
    (root / "adding" / "run.sh").rename(root / "adding" / "walk.sh")
    assert len({before.hash, executable.hash, Skills.load(root).hash}) == 3


def test_an_agent_that_reads_files_gets_them_as_they_are(folder: Make, tmp_path: Path) -> None:
    root = folder(**{"adding/scripts/run.sh": b"echo\n", "adding/data.bin": b"\0\xff"})
    (root / "adding" / "scripts" / "run.sh").chmod(0o700)
    Skills.load(root).write_to(tmp_path / "out")

    assert (tmp_path / "out/adding/data.bin").read_bytes() == b"\0\xff"
    assert os.access(tmp_path / "out/adding/scripts/run.sh", os.X_OK)


def test_hidden_files_and_those_beside_the_skills_are_left_out(folder: Make) -> None:
    hidden = {"README.md": "x", ".git/config": "x", "adding/.env": "key", "adding/__pycache__/a.pyc": b"x"}
    skills = Skills.load(folder(**hidden))
    assert list(skills.skills["adding"].files) == ["SKILL.md"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"empty/notes.md": "x"}, "empty is no skill: it has no SKILL.md; add it"),
        ({"low/skill.md": "x"}, "low is no skill: it has no SKILL.md; rename skill.md"),
        ({"SKILL.md": "x"}, "is a skill itself; give the folder above it"),
        ({"bad/SKILL.md": "# Title"}, "bad/SKILL.md has no front matter: begin it with ---"),
        ({"bad/SKILL.md": "---\nname: [\n---\n"}, "front matter is no YAML"),
        ({"bad/SKILL.md": "---\n- a\n---\n"}, "bad/SKILL.md is wrong"),
        ({"bad/SKILL.md": "---\nname: bad\n---\n"}, "description: Field required"),
        ({"bad/SKILL.md": "---\nname: Bad Name\ndescription: x\n---\n"}, "name: String should match pattern"),
        ({"bad/SKILL.md": f"---\nname: bad\ndescription: {'x' * 1025}\n---\n"}, "at most 1024 characters"),
        ({"bad/SKILL.md": HEAD.format(name="other")}, "name is 'other' but the folder is 'bad'; make them equal"),
        ({"bad/SKILL.md": b"---\nname: \xff\n---\n"}, "bad/SKILL.md is no UTF-8 text"),
        ({"bad/SKILL.md": HEAD.format(name="bad") + "x" * 300_000}, "of at most 256 KiB"),
    ],
)
def test_a_faulty_skill_is_told_with_its_place(folder: Make, files: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Skills.load(folder(**files))


@pytest.mark.parametrize("target", ["/etc/passwd", "SKILL.md", "/etc"])
def test_a_link_is_refused_wherever_it_leads(folder: Make, target: str) -> None:
    root = folder()
    (root / "adding" / "link").symlink_to(target)
    with pytest.raises(ConfigError, match="adding/link is a link; skills hold files of their own"):
        Skills.load(root)


def test_a_skill_that_is_a_link_or_a_pipe_is_refused(folder: Make) -> None:
    root = folder()
    (root / "linked").symlink_to(root / "adding")
    with pytest.raises(ConfigError, match="linked"):
        Skills.load(root)
    (root / "linked").unlink()
    os.mkfifo(root / "adding" / "pipe")
    with pytest.raises(ConfigError, match="pipe is no plain file"):
        Skills.load(root)


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 2), ("MAX_BYTES", 200)])
def test_skills_are_bounded_in_number_and_size(
    folder: Make, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(**{"adding/a.txt": "a" * 100, "adding/b.txt": "b" * 100})
    Skills.load(root)
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(ConfigError, match=r"b\.txt: the skills are more than"):
        Skills.load(root)


def test_a_folder_that_is_not_there_or_has_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Skills.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="holds no skills"):
        Skills.load(tmp_path)


def test_an_agent_is_given_a_folder_and_says_what_it_read(folder: Make) -> None:
    agent = ToolLoop(skills=folder())
    assert agent.skills is not None
    assert agent.model_dump(mode="json")["skills"] == agent.skills.ref
    with pytest.raises(ValidationError, match="adding is a skill itself"):
        ToolLoop(skills=folder().parent / "skills" / "adding")


def test_an_agent_that_takes_none_says_so(folder: Make) -> None:
    with pytest.raises(ValidationError, match="SingleTurn takes no skills; leave `skills` out, or choose an agent"):
        SingleTurn(skills=folder())
