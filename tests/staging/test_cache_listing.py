import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.staging.cache_listing import CacheListing, LastUses, StagedNames, number_of


def _name(number: Any) -> str:
    return f"{number:040x}"


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., Any]:
    """Makes a staged file of one byte with its record, last used at the given time."""

    def make(number: Any, used_at_ns: int = 1) -> Any:
        path = tmp_path / f"{_name(number)}.1.staged"
        path.with_suffix(".held").touch()
        path.write_bytes(b"x")
        os.utime(path, ns=(used_at_ns, used_at_ns))
        return path.name

    return make


def test_a_listing_sorts_files_by_their_names(tmp_path: Path, staged: Callable[..., Any]) -> None:
    whole = staged(1)
    for name in (
        f"{_name(2)}.20.part",
        f"{_name(3)}.30.staged",
        f"{_name(4)}.40.held",
        "notes.txt",
        f"{_name(5)}.050.staged",
    ):
        (tmp_path / name).touch()
    (tmp_path / f"{_name(6)}.60.staged").mkdir()
    listing = CacheListing.of(tmp_path)
    assert (listing.staged, listing.parts) == ([whole], [f"{_name(2)}.20.part"])
    assert sorted(listing.left_over) == [f"{_name(3)}.30.staged", f"{_name(4)}.40.held"]
    assert [number_of(name) for name in (*listing.staged, *listing.parts)] == [1, 20]
    assert list(listing.staged_of(_name(1))) == [whole]
    assert list(listing.staged_of(_name(7))) == []


def test_staged_names_follow_changes_within_one_clock_tick(
    tmp_path: Path, staged: Callable[..., Any]
) -> None:
    names = StagedNames(tmp_path)
    now_ns = time.time_ns() + 10**12  # However slow the machine is, this tick is not over.
    os.utime(tmp_path, ns=(now_ns, now_ns))
    assert not names.has(_name(1))
    name = staged(1)
    os.utime(tmp_path, ns=(now_ns, now_ns))
    assert names.has(_name(1))
    (tmp_path / name).unlink()
    os.utime(tmp_path, ns=(now_ns, now_ns))
    assert not names.has(_name(1))


def test_an_unchanged_directory_is_not_listed_again(
    tmp_path: Path, staged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(1)
    os.utime(tmp_path, ns=(10, 10))
    names = StagedNames(tmp_path)
    assert names.has(_name(1))
    monkeypatch.setattr("os.listdir", None)
    assert names.has(_name(1))
    assert not names.has(_name(2))


def test_a_missing_directory_has_no_staged_names(tmp_path: Path) -> None:
    assert not StagedNames(tmp_path / "gone").has(_name(1))


def test_a_use_earlier_than_the_last_one_seen_counts(
    tmp_path: Path, staged: Callable[..., Any]
) -> None:
    names = [staged(number, used_at_ns=number + 10) for number in range(3)]
    uses = LastUses(tmp_path)
    assert list(uses.in_order(names)) == names
    os.utime(tmp_path / names[0], ns=(5, 5))
    os.utime(tmp_path / names[1], ns=(99, 99))
    assert list(uses.in_order(names)) == [names[0], names[2], names[1]]


@given(changes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=6, max_size=30))
def test_files_come_in_the_order_of_their_last_use_as_it_is_now(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("uses")
    uses, used_at_ns = LastUses(root), dict[Any, Any]()
    for index, (number, later_ns) in enumerate(changes):
        path = root / f"{_name(number)}.1.staged"
        path.touch()
        used_at_ns[path.name] = used_at_ns.get(path.name, 0) + later_ns
        os.utime(path, ns=(used_at_ns[path.name],) * 2)
        if index % 2:
            expected = sorted(used_at_ns, key=lambda name: (used_at_ns[name], name))
            assert list(uses.in_order(list(used_at_ns))) == expected
            gone = expected[0]
            (root / gone).unlink()
            del used_at_ns[gone]
            assert list(uses.in_order(list(used_at_ns))) == expected[1:]


def test_only_files_at_the_head_of_the_order_are_looked_at(
    tmp_path: Path, staged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [staged(number, used_at_ns=number + 1) for number in range(100)]
    uses = LastUses(tmp_path)
    assert next(uses.in_order(names)) == names[0]
    look = Mock(side_effect=os.stat)
    with monkeypatch.context() as patch:
        patch.setattr("os.stat", look)
        assert next(uses.in_order(names)) == names[0]
    assert look.call_count == 1
