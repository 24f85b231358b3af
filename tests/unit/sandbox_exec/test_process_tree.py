"""Process tree: which children a process has."""

from __future__ import annotations

import os
import subprocess
import sys

from gymbox_sandbox.process_tree import children_of_this_thread


def test_children_are_listed_until_they_are_waited_for() -> None:
    before = children_of_this_thread()
    if before is None:
        return  # this kernel does not list them
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    during = children_of_this_thread()
    child.communicate(b"\n")
    after = children_of_this_thread()

    assert during is not None and during - before == {child.pid}
    assert after is not None and child.pid not in after and os.getpid() not in after
