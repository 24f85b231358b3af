"""State: a controller's folder, its lock, and how it is found."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from gymbox.controller.state import APPEARS, StateDirectory, find_controller
from gymbox.controller.sweep import sweep_abandoned
from gymbox.controller.tokens import Tokens
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog
from gymbox.errors import ConfigError, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import StartSpec
from gymbox_sandbox.lifecycle import CreateSandbox, fingerprint


def forgotten(state: StateDirectory) -> None:
    """Make it one that was first swept so long ago that nothing can appear any more."""
    long_ago = time.time() - APPEARS - 1
    os.utime(state.path / "swept", (long_ago, long_ago))


def test_id_and_key_stay_and_are_not_for_others(folder):
    first = StateDirectory.main(folder)
    first.close()
    first.close()
    second = StateDirectory.main(folder)

    assert (second.id, second.key) == (first.id, first.key)
    assert stat.S_IMODE((second.path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(second.path.stat().st_mode) & 0o066 == 0
    second.close()


def test_only_one_controller_holds_it(folder):
    first = StateDirectory.main(folder)
    with pytest.raises(ConfigError, match="another controller"):
        StateDirectory.main(folder)
    first.close()


def test_others_can_pass_through_whatever_the_umask_is(folder):
    before = os.umask(0o077)
    try:
        state = StateDirectory.main(folder / "gymbox")
    finally:
        os.umask(before)
    wanted = 0o711 if os.geteuid() == 0 else 0o700

    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder / "gymbox", state.path, state.path / "s")} == {
        wanted
    }
    state.close()


def test_a_folder_that_cannot_be_written_is_said_plainly(folder):
    (folder / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep"):
        StateDirectory.main(folder / "file")


def test_the_folder_of_a_containers_sockets_has_a_short_path(folder):
    state = StateDirectory.main(folder)
    assert len(state.directory_of("x" * 200).name) == 12
    assert state.directory_of("a") != state.directory_of("b")
    state.close()


def test_intents_to_delete_are_kept(folder):
    state = StateDirectory.main(folder)
    state.intend_delete("c1")
    state.intend_delete("c2")
    state.deleted("c2")
    state.deleted("c3")
    state.close()
    again = StateDirectory.main(folder)

    assert again.intended_deletes() == {"c1"}
    again.close()


def test_a_running_controller_is_found_the_one_that_stays_first(folder):
    assert find_controller(folder) is None
    run = StateDirectory.of_run(folder)
    assert find_controller(folder) is None
    run.announce("http://run", "http://proxy")
    assert find_controller(folder).controller == "http://run"
    main = StateDirectory.main(folder)
    main.announce("http://main", "http://proxy")
    assert find_controller(folder) == ("http://main", "http://proxy", os.getpid())
    main.close()
    run.close()
    assert find_controller(folder) is None


def test_what_a_dead_controller_announced_is_not_found(folder):
    state = StateDirectory.main(folder)
    state.announce("http://main", "http://proxy")
    announced = (state.path / "address.json").read_text()
    state.close()
    (folder / "main" / "address.json").write_text(announced)
    assert find_controller(folder) is None
    (folder / "main" / "address.json").write_text("{")
    assert find_controller(folder) is None


def test_the_state_of_a_run_goes_with_it_unless_something_is_to_be_deleted(folder):
    done, undone = StateDirectory.of_run(folder), StateDirectory.of_run(folder)
    undone.intend_delete("c1")
    done.close()
    undone.close()

    assert list(folder.glob("run-*")) == [undone.path]


async def test_what_killed_runs_left_is_swept_and_living_runs_are_not(folder, provider, environments):
    dead, living = StateDirectory.of_run(folder), StateDirectory.of_run(folder)
    await provider.start(StartSpec("c1", environments["alone"], dead.directory_of("c1")), lambda phase: None)
    os.close(dead._lock)  # as the end of its process does
    await sweep_abandoned(folder, provider)

    assert provider.containers == {}
    assert {*folder.glob("run-*")} == {dead.path, living.path}
    forgotten(dead)
    await sweep_abandoned(folder, provider)
    assert list(folder.glob("run-*")) == [living.path]
    living.close()


def test_sandboxes_folders_go_with_what_is_beside_them(folder, caplog):
    state = StateDirectory.of_run(folder)
    own = state.directory_of("c1")
    own.mkdir()
    (own / "server.sock").touch()
    (own.parent / "resolv.conf").touch()
    state.clear_sockets()
    assert not list(own.parent.iterdir()) and not caplog.records
    state.close()


async def test_what_an_engine_makes_only_after_a_sweep_is_removed_by_the_next(folder, provider, environments):
    dead = StateDirectory.of_run(folder)
    os.close(dead._lock)
    await sweep_abandoned(folder, provider)
    await provider.start(StartSpec("late", environments["alone"], dead.directory_of("late")), lambda phase: None)

    await sweep_abandoned(folder, provider)

    assert provider.containers == {}


async def test_a_run_sweeps_at_its_end_too(folder, provider, environments, caplog):
    dead = StateDirectory.of_run(folder)
    os.close(dead._lock)
    async with HttpClient() as http, EmbeddedController(provider, Catalog([]), folder, "gbx_admin_x", http):
        await provider.start(StartSpec("late", environments["alone"], dead.directory_of("late")), lambda phase: None)
    assert provider.containers == {}

    async with HttpClient() as http, EmbeddedController(provider, Catalog([]), folder, "gbx_admin_x", http):
        provider.list_error = Unavailable("the engine is gone")
    assert "left to the next sweep: the engine is gone" in caplog.text


async def test_a_run_goes_on_at_its_end_with_removals_of_its_own_that_have_failed(folder, provider, environments):
    async with HttpClient() as http, EmbeddedController(provider, Catalog([]), folder, "gbx_admin_x", http) as own:
        await provider.start(StartSpec("c1", environments["alone"], folder / "s"), lambda phase: None)
        [state] = folder.glob("run-*")
        (state / "deletes" / "c1").touch()
        assert own.url
    assert provider.containers == {}


async def test_one_that_cannot_be_swept_does_not_save_the_others(folder, provider, environments):
    dead = StateDirectory.of_run(folder)
    for id in ("c1", "c2"):
        await provider.start(StartSpec(id, environments["alone"], dead.directory_of(id)), lambda phase: None)
    os.close(dead._lock)
    provider.stop_errors = 3  # each sweep looks twice
    await sweep_abandoned(folder, provider)

    assert len(provider.containers) == len(list((dead.path / "deletes").iterdir())) == 1
    await sweep_abandoned(folder, provider)


async def test_what_another_provider_made_is_left_to_its_own_sweeps(folder, provider, environments):
    dead, unnamed = StateDirectory.of_run(folder), StateDirectory.of_run(folder)
    dead.of_provider("another")
    for state in (dead, unnamed):
        state.directory_of("c1").mkdir()
        os.close(state._lock)
    await sweep_abandoned(folder, provider)

    assert dead.directory_of("c1").is_dir() and not (dead.path / "swept").exists()
    assert list((unnamed.path / "s").iterdir()) == [] and (unnamed.path / "swept").exists()


async def test_a_run_notes_whose_its_sandboxes_are(folder, provider):
    async with HttpClient() as http, EmbeddedController(provider, Catalog([]), folder, "gbx_admin_x", http):
        [state] = folder.glob("run-*")
        assert (state / "provider").read_text() == provider.name


async def test_a_state_stays_where_the_provider_does_not_answer(folder, provider):
    dead = StateDirectory.of_run(folder)
    os.close(dead._lock)
    provider.list_error = Unavailable("the engine is gone")
    with pytest.raises(Unavailable):
        await sweep_abandoned(folder, provider)

    assert dead.path.exists()


async def test_what_was_to_be_deleted_and_is_gone_is_swept_with_its_run(folder, provider):
    dead = StateDirectory.of_run(folder)
    dead.intend_delete("c1")
    os.close(dead._lock)
    await sweep_abandoned(folder, provider)
    forgotten(dead)
    await sweep_abandoned(folder, provider)

    assert not dead.path.exists()


async def test_what_cannot_be_swept_is_left_to_the_next_sweep(folder, provider, environments):
    dead = StateDirectory.of_run(folder)
    await provider.start(StartSpec("c1", environments["alone"], dead.directory_of("c1")), lambda phase: None)
    os.close(dead._lock)
    provider.stop_errors = 2  # each sweep looks twice
    await sweep_abandoned(folder, provider)
    forgotten(dead)
    assert provider.containers
    await sweep_abandoned(folder, provider)

    assert provider.containers == {}
    assert not dead.path.exists()


def test_tokens_are_the_same_for_the_same_key_and_differ_otherwise():
    one, other = Tokens(b"k" * 32), Tokens(b"o" * 32)

    assert one.of("s1") == Tokens(b"k" * 32).of("s1")
    assert len({t for tokens in (one, other) for id in ("s1", "s2") for t in (*vars(tokens.of(id)).values(),)}) == 8
    assert one.of("s1").tools.startswith("gbx_sbx_")
    assert fingerprint("x") == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_loaded_environments_are_read_again_when_their_files_change(folder: Path):
    from gymbox.controller.environments import LoadedEnvironments

    home = folder / "mine"
    home.mkdir()
    (home / "environment.yaml").write_text("description: one\n")
    loaded = LoadedEnvironments(Catalog([folder]))
    first = loaded("mine")
    assert loaded("mine") is first
    (home / "environment.yaml").write_text("description: another\n")
    assert loaded("mine").manifest.description == "another"
    (home / "environment.yaml").unlink()
    home.rmdir()
    with pytest.raises(ConfigError):
        loaded("mine")


def test_claims_are_noted_where_a_successor_could_go_on_with_them(folder):
    for make, noted in ((StateDirectory.main, ["s1"]), (StateDirectory.of_run, [])):
        state = make(folder)
        state.claims.record("s1", "box", CreateSandbox(id="s1", environment="alone"))
        assert os.listdir(state.path / "claims") == noted
        state.claims.drop("s1")
        assert os.listdir(state.path / "claims") == []
        state.close()
