"""Output: what commands print for people, and as JSON. Whoever's words are in it, they do nothing to the terminal.

Only what a user asks for byte by byte, the output of a command or of a server in a sandbox, is printed past this.
"""

from __future__ import annotations

import typer

from gymbox.printable import printable_json, printable_lines


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with escapes in the place of what a terminal would obey; to stderr where `err`."""
    typer.echo(printable_lines(str(text)), err=err, nl=nl)


def say_json(text: str, *, nl: bool = True) -> None:
    """Print JSON, as JSON that means the same."""
    typer.echo(printable_json(text), nl=nl)
