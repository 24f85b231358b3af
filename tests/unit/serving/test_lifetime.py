"""Lifetime: what a server's process does at its start; how it ends is in test_serving."""

from __future__ import annotations

import gc

from gymbox.lifetime import YOUNG, raise_file_limit, spare_what_is_loaded


def test_the_limit_of_open_files_is_raised_to_what_is_allowed():
    import resource

    raise_file_limit()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


def test_what_is_loaded_is_not_looked_through_again():
    before = gc.get_threshold()
    gc.unfreeze()
    try:
        spare_what_is_loaded()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == (YOUNG, *before[1:])
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
