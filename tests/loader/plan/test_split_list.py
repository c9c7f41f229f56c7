"""Splits in columns are the splits."""

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Split
from featstore.loader.plan.splitting import PackedSplits, WholeFiles
from featstore.loader.request.matching import SelectedFiles
from featstore.table.file_list import FileList
from tests.loader.request.test_selected_files import files_of

CUTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=9
)


def selected() -> SelectedFiles:
    """Six of seven files."""
    return SelectedFiles(FileList(files_of([0, 1, 1, 1, 2, 3, 3])), [True, None, False, None], ())


def assert_is(splits: Sequence[Split], expected: list[Split]) -> None:
    for one in (splits, pickle.loads(pickle.dumps(splits))):
        assert list(one) == expected
        assert len(one) == len(expected)
        assert [one[index] for index in range(len(expected))] == expected
        assert list(one[1:-1]) == expected[1:-1]
        with pytest.raises(IndexError):
            one[len(expected)]


def test_whole_files_are_splits() -> None:
    files = selected()
    expected = [Split(path=path, num_rows=file.num_rows) for path, (file, _) in files.items()]
    assert len(expected) == 6
    assert_is(WholeFiles(files), expected)


@given(CUTS)
def test_splits_are_kept_in_any_order(cuts: list[tuple[int, int, int | None]]) -> None:
    files = selected()
    paths = list(files)
    numbered = [
        (
            index,
            Split(
                path=paths[index],
                num_rows=first * 7,
                first_row_group=first,
                last_row_group=None if more is None else first + more,
            ),
        )
        for index, first, more in cuts
    ]
    assert_is(PackedSplits(files, iter(numbered)), [split for _, split in numbered])
