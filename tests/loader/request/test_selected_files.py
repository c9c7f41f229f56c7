"""Selected files are a mapping like the dict of the same files."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.request.matching import Partition, SelectedFiles
from featstore.table.snapshot import DataFile, FileList

DAYS = st.lists(st.integers(0, 3), max_size=12)
MATCHES = st.fixed_dictionaries({day: st.sampled_from([True, False, None]) for day in range(4)})


def files_of(days: list[int]) -> list[DataFile]:
    """A file for each day given, several for one that occurs more than once."""
    paths = [f"dt={day}/{number:02}" for number, day in enumerate(sorted(days))]
    return [
        DataFile(
            path=path, url=f"/t/{path}", size_bytes=1, num_rows=place, partition={"dt": path[3]}
        )
        for place, path in enumerate(paths)
    ]


@given(DAYS, MATCHES)
def test_it_is_the_mapping_of_the_files_whose_partitions_match(
    days: list[int], matches: dict[int, bool | None]
) -> None:
    files = files_of(days)
    packed = FileList.of(files)
    found = [matches[int(str(place["dt"]))] for place in packed.places]
    expected = {
        file.path: (
            file,
            Partition(values=file.partition, is_decided=matches[int(file.path[3])] is True),
        )
        for file in files
        if matches[int(file.path[3])] is not False
    }
    selected = SelectedFiles(packed, found)
    for one in (
        selected,
        pickle.loads(pickle.dumps(selected)),
        SelectedFiles.of(expected.values()),
    ):
        assert one == expected
        assert list(one) == list(expected)
        assert list(one.values()) == list(expected.values())
        assert list(one.items()) == list(expected.items())
        assert len(one) == len(one.values()) == len(expected)
        assert one.are_decided == all(part.is_decided for _, part in expected.values())
        assert list(one.files) == [file for file, _ in expected.values()]
    for file in files:
        assert (file.path in selected) == (file.path in expected)
    with pytest.raises(KeyError):
        selected["dt=9/00"]
