"""Skills: folders of instructions and files that an agent reads when a task calls for them.

A folder of skills has one folder a skill, each with a `SKILL.md`: YAML front matter (`name`, which is the folder's,
`description`, and what else its author likes) and instructions beneath it, in Markdown. The format is that of the
Agent Skills specification (https://agentskills.io/specification), and so is the way in which they are told: a name and
a description from the start, the instructions when they are asked for, further files when those name them.

They are read once, whole, before anything starts, so that what an agent reads is what the digest is of. Nothing in
them is ever run here.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gymbox.environment import explain
from gymbox.errors import ConfigError

SKILL = "SKILL.md"
MAX_INSTRUCTIONS = 256 * 1024
"""Bytes of a SKILL.md."""
MAX_FILES, MAX_BYTES = 1000, 32 * 1024 * 1024
"""Of all skills together."""
LEFT_OUT = frozenset({"__pycache__"})
"""Names that are no part of a skill, beside the hidden ones, which begin with a dot."""
_FRONT_MATTER = re.compile(r"---[ \t\r]*\n(.*?)^---[ \t\r]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One file of a skill."""

    content: bytes
    executable: bool = False

    @property
    def text(self) -> str | None:
        """None: it is no text."""
        try:
            return None if b"\0" in self.content else self.content.decode()
        except UnicodeDecodeError:
            return None


class SkillHead(BaseModel):
    """What the front matter of a SKILL.md must have, and what is told of a skill; further fields are its author's."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(max_length=64, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    description: str = Field(min_length=1, max_length=1024)
    """What it is for and when to use it."""
    version: str | None = None
    """Its own, or that in its `metadata`."""

    @field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float) else value  # YAML takes 1.0 for a number


@dataclass(frozen=True, slots=True)
class Skill:
    """One of them: its head, and its files by their paths in its folder, SKILL.md among them."""

    head: SkillHead
    files: dict[str, SkillFile] = field(repr=False)

    @property
    def name(self) -> str:
        return self.head.name


@dataclass(frozen=True, slots=True)
class Skills:
    """Those of one folder, by name."""

    path: str
    """The folder, as it was given."""
    hash: str
    """Twelve hex digits of the SHA-256 over names, modes and bytes of all files."""
    skills: dict[str, Skill]

    @property
    def ref(self) -> dict[str, Any]:
        """What a result says of them, as NeMo Gym's do (`skills_ref`)."""
        told = [skill.head.model_dump(exclude_none=True) for skill in self.skills.values()]
        return {"path": self.path, "hash": self.hash, "skills": told}

    def write_to(self, folder: Path) -> None:
        """Put them all into a folder, one folder a skill: for agents that read their skills from files."""
        for skill in self.skills.values():
            for name, file in skill.files.items():
                path = folder / skill.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
                path.chmod(0o755 if file.executable else 0o644)

    @classmethod
    def load(cls, folder: Path) -> Skills:
        """The skills in a folder. Hidden files and what lies beside the skills' folders are left out.

        Raises:
            ConfigError: there is no such folder or it has no skills; or one of them is wrong, or has a link or more
                than may be.
        """
        try:
            found = [entry for entry in _entries(folder) if not entry.is_file(follow_symlinks=False)]
            if (folder / SKILL).exists():
                raise ConfigError(f"{folder} is a skill itself; give the folder above it, which holds one folder each")
            reader = _Reader()
            skills = {entry.name: reader.skill(Path(entry.path)) for entry in found}
        except OSError as error:
            raise ConfigError(f"the skills in {folder} cannot be read: {error.strerror}: {error.filename}") from error
        if not skills:
            raise ConfigError(f"{folder} holds no skills: each is a folder with a {SKILL}")
        return cls(str(folder), _digest(skills)[:12], skills)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder and counts, in a fixed order."""
    with os.scandir(folder) as entries:
        kept = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in LEFT_OUT]
    return sorted(kept, key=lambda entry: entry.name)


@dataclass
class _Reader:
    """Reads skills, and counts what they take."""

    files: int = 0
    size: int = 0

    def skill(self, folder: Path) -> Skill:
        files = dict(self._files(folder, ""))
        if SKILL not in files:
            near = next((name for name in files if name.lower() == SKILL.lower()), None)
            hint = f"; rename {near}" if near else "; add it, or move what is no skill elsewhere"
            raise ConfigError(f"{folder} is no skill: it has no {SKILL}{hint}")
        return Skill(_head(folder, files[SKILL]), files)

    def _files(self, folder: Path, prefix: str) -> Iterator[tuple[str, SkillFile]]:
        for entry in _entries(folder):
            if entry.is_symlink():
                raise ConfigError(f"{entry.path} is a link; skills hold files of their own, so put a copy there")
            if entry.is_dir():
                yield from self._files(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", self._file(Path(entry.path))

    def _file(self, path: Path) -> SkillFile:
        # what stands there when it is opened is what is looked at: no link, and no pipe that would be waited for
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is no plain file; take it out of the skills")
            left = MAX_BYTES - self.size
            content = file.read(left + 1)
        self.files += 1
        self.size += len(content)
        if self.files > MAX_FILES or self.size > MAX_BYTES:
            raise ConfigError(
                f"{path}: the skills are more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; leave out what no "
                "agent will read"
            )
        return SkillFile(content, bool(status.st_mode & stat.S_IXUSR))


def _head(folder: Path, file: SkillFile) -> SkillHead:
    """
    Raises:
        ConfigError: the SKILL.md is too large or no text, or its front matter is wrong.
    """
    path, text = folder / SKILL, file.text
    if text is None or len(file.content) > MAX_INSTRUCTIONS:
        raise ConfigError(f"{path} is no UTF-8 text of at most {MAX_INSTRUCTIONS >> 10} KiB")
    matter = _FRONT_MATTER.match(text.removeprefix("\ufeff"))
    if matter is None:
        raise ConfigError(f"{path} has no front matter: begin it with ---, name: and description:, and --- again")
    try:
        content = yaml.safe_load(matter[1])
        if isinstance(content, dict) and content.get("version") is None:
            metadata = content.get("metadata")
            content["version"] = metadata.get("version") if isinstance(metadata, dict) else None
        head = SkillHead.model_validate(content)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: the front matter is no YAML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path} is wrong:\n{explain(error, list(SkillHead.model_fields))}") from error
    if head.name != folder.name:
        raise ConfigError(f"{path}: name is {head.name!r} but the folder is {folder.name!r}; make them equal")
    return head


def _digest(skills: dict[str, Skill]) -> str:
    sha = hashlib.sha256()
    for skill in skills.values():
        for name, file in sorted(skill.files.items()):
            sha.update(f"{skill.name}/{name}\0{file.executable:d}\0{len(file.content)}\0".encode())
            sha.update(file.content)
    return sha.hexdigest()
