"""The commits of a slot group in the logs, and the pairing of base files with group files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from featstore.base.errors import DataFileError, InputError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.table import delta
from featstore.table.groups import drop_groups, groups_commit, publish_group
from featstore.table.layout import (
    base_path,
    group_file_path,
    group_url,
)
from featstore.table.metadata import CommitMetadata
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, files_digest
from tests.masked_tables import delete_by_vector

BASE_PATH = "day=1/part-00007-0a1b2c3d-4e5f6071-0.parquet"
GROUP_PATH = "day=1/part-00007-0a1b2c3d-4e5f6071-0/part-00007-11111111-22222222-0.parquet"
KEYS = (pa.field("day", pa.string()),)


def commit(url: str, path: str, number: int, run_id: str = "r") -> int:
    schema = SlotSchema(
        slots=(Slot(name=f"slot{number}", kind=SlotKind.ID, number=number),), partition_keys=KEYS
    )
    files = (
        DataFile(path=path, url=f"{url}/{path}", size_bytes=9, num_rows=5, partition={"day": "1"}),
    )
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash="s",
        spec_version=1,
        input_digest=None,
        data_digest=files_digest(files),
        partitions=({"day": "1"},),
        num_files=1,
        num_rows=5,
        size_bytes=9,
    )
    base = delta.open_delta_or_none(url)
    return delta.commit(
        url,
        delta.Change(
            base=base, schema=schema, partitions=({"day": "1"},), files=files, metadata=metadata
        ),
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table with one file, and a group with a file for it that the table does not reference yet."""
    url = str(tmp_path / "table")
    commit(url, BASE_PATH, 1)
    commit(group_url(url, "more"), GROUP_PATH, 2)
    return url


def publish(url: str, version: int = 0) -> int:
    base = delta.open_delta(url)
    return publish_group(base, "more", version, ({"day": "1"},), groups_commit("g", base, ()))


def test_a_groups_file_lies_in_a_directory_named_like_its_base_file() -> None:
    assert group_file_path(BASE_PATH, "part-00007-11111111-22222222-0.parquet") == GROUP_PATH
    assert base_path(GROUP_PATH) == BASE_PATH


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "..", "a" * 65])
def test_the_name_of_a_group_is_restricted(name: str) -> None:
    with pytest.raises(InputError, match="expected 1 to 64 of a-z"):
        group_url("/table", name)


def test_the_base_references_versions_in_a_property_and_records_them_in_its_commit(
    url: str,
) -> None:
    assert publish(url) == 1
    table = DeltaTable(url)
    assert table.metadata().configuration["featstore.groups"] == '{"more": 0}'
    said = table.history(1)[0]["featstore"]
    assert (said["groups"], said["num_files"], said["input_digest"], said["format"]) == (
        {"more": 0},
        0,
        None,
        1,
    )
    log = [
        json.loads(line)
        for line in (Path(url) / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    ]
    assert [action["txn"]["appId"] for action in log if "txn" in action] == ["featstore/day=1"]
    assert not any("add" in action or "remove" in action for action in log)


def test_only_referenced_versions_of_groups_are_read(url: str) -> None:
    assert open_snapshot(url).schema.names == ("slot1",)
    publish(url)
    snapshot = open_snapshot(url)
    (file,) = snapshot.data_files
    assert snapshot.schema.names == ("slot1", "slot2")
    assert [(group.group, group.path) for group in file.groups] == [
        ("more", f"_groups/more/{GROUP_PATH}")
    ]
    assert (snapshot.size_bytes, snapshot.num_rows) == (18, 5)
    assert open_snapshot(url, version=0).schema.names == ("slot1",)


def test_slot_groups_on_masked_files_are_refused(url: str) -> None:
    publish(url)
    delete_by_vector(url, [3])
    with pytest.raises(
        DataFileError, match=r"slot groups \(more\) .*found deletion vectors, .*APPLY \(PURGE\)"
    ):
        open_snapshot(url)
    assert open_snapshot(url, version=1).num_rows == 5


def test_a_reference_is_committed_once_and_never_goes_back(url: str) -> None:
    commit(group_url(url, "more"), GROUP_PATH.replace("2222", "3333"), 2, "r2")
    assert publish(url, 1) == 1
    assert publish(url, 0) == 1
    assert open_snapshot(url).group_versions == {"more": 1}


def test_the_spec_hash_is_that_of_the_commit_that_wrote_files(url: str) -> None:
    publish(url)
    assert open_snapshot(url).spec_hash == "s"


def test_a_group_that_was_committed_meanwhile_is_not_dropped(url: str) -> None:
    publish(url)
    base = open_snapshot(url)
    drop_groups(base, {"more": 7}, groups_commit("d1", base, ()))
    assert open_snapshot(url).group_versions == {"more": 0}
    base = open_snapshot(url)
    drop_groups(base, {"more": 0}, groups_commit("d2", base, ()))
    assert open_snapshot(url).group_versions == {}


def test_a_property_of_another_form_is_refused(url: str) -> None:
    DeltaTable(url).alter.set_table_properties(
        {"featstore.groups": "[1]"}, raise_if_not_exists=False
    )
    with pytest.raises(
        DataFileError, match=r"'featstore.groups' is not a mapping of groups to versions"
    ):
        open_snapshot(url)
