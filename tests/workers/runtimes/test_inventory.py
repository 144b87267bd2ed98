"""Listing and removing built runtimes, with the package cache."""

from __future__ import annotations

import pytest

from service.errors import UsageError
from tests.support.wheels import make_lock
from tests.workers.runtimes.conftest import Bench
from workers.runtimes import RuntimeBusyError
from workers.runtimes.disk import human, used
from workers.runtimes.guard import Guard
from workers.runtimes.inventory import MARKER, key, lock_path


@pytest.fixture
def both(bench: Bench) -> Bench:
    for name in ("9.9.9", "8.8.8"):
        bench.executor.ensure(bench.spec(name), bench.progress)
    bench.index.requests.clear()
    return bench


def test_the_list_says_what_is_whole_and_still_wanted(both: Bench) -> None:
    old = both.executor.folder(both.spec("9.9.9"))
    make_lock(both.spec("9.9.9").lock, [both.wheels["torch-9.9.9"]])
    (both.executor.folder(both.spec("8.8.8")) / MARKER).unlink()
    built = {item.name: item for item in both.executor.list_built()}
    assert (built["9.9.9-index"].path, built["9.9.9-index"].complete, built["9.9.9-index"].current) == (
        old,
        True,
        False,
    )
    assert (built["8.8.8-index"].complete, built["8.8.8-index"].current) == (False, True)
    assert built["9.9.9-index"].packages == {"torch": "9.9.9", "extra": "1.0"}


def test_sizes_count_files_in_the_cache_once(both: Bench) -> None:
    built = both.executor.list_built()
    everything = used(both.settings.home / "runtimes", both.settings.home / "cache")
    assert sum(item.bytes for item in built) + both.executor.cache_bytes() <= everything
    modules = [next(item.path.glob("lib/python*/site-packages/extra.py")) for item in built]
    assert modules[0].stat().st_ino == modules[1].stat().st_ino, "hard links, through the package cache"


def test_removing_frees_what_only_that_runtime_needed(both: Bench) -> None:
    before = used(both.settings.home)
    gone, freed = both.executor.remove(["9.9.9-index"])
    assert [item.name for item in gone] == ["9.9.9-index"]
    assert freed == before - used(both.settings.home) > 0
    assert both.left() == [key(both.spec("8.8.8"))]
    assert both.executor.check(both.spec("8.8.8")).problems == ()
    both.executor.ensure(both.spec("9.9.9"), both.progress)
    assert both.fetched("torch") > 0, "its torch was pruned from the cache"
    assert both.fetched("extra") == 0, "extra was not: the other runtime has it too"


def test_removing_everything_empties_the_cache(both: Bench) -> None:
    both.executor.remove(everything=True)
    assert both.left() == []
    assert not list(both.settings.home.glob("cache/uv/archive*"))
    assert both.executor.remove(everything=True) == ((), 0)


def test_removing_what_is_unused(both: Bench) -> None:
    assert both.executor.remove(unused=True) == ((), 0)
    make_lock(both.spec("9.9.9").lock, [both.wheels["torch-9.9.9"]])
    (both.executor.folder(both.spec("8.8.8")) / MARKER).unlink()
    gone, _ = both.executor.remove(unused=True)
    assert {item.name for item in gone} == {"9.9.9-index", "8.8.8-index"}
    assert both.left() == []


def test_a_runtime_in_use_stays_and_so_do_the_others(both: Bench) -> None:
    with Guard(lock_path(both.executor.root, key(both.spec("9.9.9")))) as guard:
        assert guard.take(shared=True)
        with pytest.raises(RuntimeBusyError, match=r"9\.9\.9-index-\w+ is in use"):
            both.executor.remove(everything=True)
    assert len(both.left()) == 2


def test_an_unknown_name_is_answered_with_the_nearest(both: Bench) -> None:
    with pytest.raises(UsageError, match=r"9\.9\.8-index is not built: did you mean 9\.9\.9-index"):
        both.executor.remove(["9.9.8-index"])


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (3_919_000_000, "3.9 GB"), (2.5e12, "2.5 TB")]
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert human(count) == text
