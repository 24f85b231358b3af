"""Lifetime: what a server's process does at its start; how it ends is in test_serving."""

from __future__ import annotations

from gymbox.lifetime import raise_file_limit


def test_the_limit_of_open_files_is_raised_to_what_is_allowed():
    import resource

    raise_file_limit()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
