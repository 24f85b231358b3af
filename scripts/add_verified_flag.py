"""Add `verified: false` to each environment.yaml that does not say `verified`: `add_verified_flag.py FILE…`.

A new environment is unverified until a person has checked that its rewards are right. Only a line is appended, so
comments and formatting stay. Exit code 1 if a file was changed (stage it and commit again) or cannot be.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def with_flag(content: str) -> str:
    """`content` with a `verified` key.

    Raises:
        ValueError: it is no block mapping, so a line cannot be appended.
    """
    manifest = yaml.safe_load(content)
    if isinstance(manifest, dict) and "verified" in manifest:
        return content
    newline = "\r\n" if "\r\n" in content else "\n"
    flagged = content + ("" if content.endswith("\n") or not content else newline) + f"verified: false{newline}"
    try:
        understood = yaml.safe_load(flagged) == {**(manifest or {}), "verified": False}
    except (yaml.YAMLError, TypeError):
        understood = False
    if not understood:
        raise ValueError("it is not a plain mapping of `key: value` lines")
    return flagged


def main(paths: list[str]) -> int:
    changed = failed = False
    for path in map(Path, paths):
        before = path.read_bytes().decode()  # not read_text: it would translate line ends
        try:
            after = with_flag(before)
        except (ValueError, yaml.YAMLError) as error:
            print(f"{path}: cannot add `verified: false`: {error}")
            failed = True
            continue
        if after != before:
            path.write_bytes(after.encode())
            print(f"{path}: added `verified: false`")
            changed = True
    return int(changed or failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
