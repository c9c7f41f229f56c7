import json
from dataclasses import replace
from pathlib import Path

import pytest

from featstore.base.errors import DataFileError, InputError
from featstore.table.metadata import (
    CommitMetadata,
    FileMetadata,
    GroupOrigin,
    require_input_order,
    to_json,
)

GOLDEN = Path(__file__).parents[1] / "golden"
COMMIT = CommitMetadata(
    run_id="0123456789abcdef0123456789abcdef",
    spec_hash="5f" * 32,
    spec_version=1,
    input_digest="1d" * 32,
    data_digest="da" * 32,
    partitions=({"month": "2013-01"}, {"month": "2013-02"}),
    num_files=2,
    num_rows=300,
    size_bytes=12_345,
    counts={"price: nan": 3},
)


def test_commit_metadata_matches_the_golden_file_byte_for_byte() -> None:
    assert to_json(COMMIT.to_mapping()) + "\n" == (GOLDEN / "commit_metadata.json").read_text()


def test_skipped_rows_are_written_only_where_there_are_any() -> None:
    skipped = replace(COMMIT, num_rows_skipped=7)
    assert "num_rows_skipped" not in COMMIT.to_mapping()
    assert (
        to_json(skipped.to_mapping()) + "\n"
        == (GOLDEN / "commit_metadata_skipped.json").read_text()
    )
    assert CommitMetadata.from_mapping(skipped.to_mapping(), "version 3") == skipped


def test_logs_of_events_are_written_only_where_there_are_any() -> None:
    clicks = {"files": "MTIzNDU2NzgAAAAFAAAABw==", "as_of": [300_000_000, 480_000_000]}
    told = replace(COMMIT, events={"clicks": clicks})
    assert "events" not in COMMIT.to_mapping()
    assert to_json(told.to_mapping()) + "\n" == (GOLDEN / "commit_metadata_events.json").read_text()
    assert CommitMetadata.from_mapping(told.to_mapping(), "version 3") == told


def test_reports_are_written_only_where_there_are_any() -> None:
    joined = replace(COMMIT, report={"format": 1, "output": {"num_rows": 300}})
    assert "report" not in COMMIT.to_mapping()
    mapping = json.loads(to_json(joined.to_mapping()))
    assert mapping["report"] == {"format": 1, "output": {"num_rows": 300}}
    assert CommitMetadata.from_mapping(mapping, "version 3") == joined


def test_examples_of_reports_are_not_written_nor_copied_from_older_commits() -> None:
    older = to_json(replace(COMMIT, report={"num_malformed": 1}).to_mapping())
    older = older.replace('"num_malformed":1', '"num_malformed":1,"examples":["u16"]')
    found = CommitMetadata.from_mapping(json.loads(older), "version 3")
    assert found.report["examples"] == ["u16"]
    copied = replace(COMMIT, origins=(found,)).to_mapping()
    assert copied["origins"][0]["report"] == {"num_malformed": 1}


def test_numbers_of_raw_files_are_written_only_where_they_are_known() -> None:
    known = replace(COMMIT, num_raw_files=(3, 1))
    assert "num_raw_files" not in COMMIT.to_mapping()
    mapping = json.loads(to_json(known.to_mapping()))
    assert mapping["num_raw_files"] == [3, 1]
    assert CommitMetadata.from_mapping(mapping, "version 3") == known


def test_origins_are_written_only_where_there_are_any() -> None:
    compacted = replace(
        COMMIT,
        input_digest=None,
        origins=(replace(COMMIT, data_digest="0e" * 32, num_rows_skipped=7),),
    )
    assert "origins" not in COMMIT.to_mapping()
    assert (
        to_json(compacted.to_mapping()) + "\n"
        == (GOLDEN / "commit_metadata_compacted.json").read_text()
    )
    assert (
        CommitMetadata.from_mapping(json.loads(to_json(compacted.to_mapping())), "version 3")
        == compacted
    )


def test_folded_groups_are_written_only_where_there_are_any() -> None:
    group = GroupOrigin(group="items", slots=("item", "item_x_user"), spec_hash="6f" * 32)
    origin = replace(COMMIT, data_digest="0e" * 32, folded=(group,))
    compacted = replace(COMMIT, input_digest=None, origins=(origin,))
    assert "folded" not in COMMIT.to_mapping()
    text = to_json(compacted.to_mapping()) + "\n"
    assert text == (GOLDEN / "commit_metadata_folded.json").read_text()
    assert CommitMetadata.from_mapping(json.loads(text), "version 3") == compacted


def test_checks_and_warnings_are_written_only_where_there_are_any() -> None:
    warning = {
        "check": "coverage",
        "column": "user",
        "partition": {"month": "2013-01"},
        "outcome": "warn",
        "value": 0.5,
        "error": 0.0,
        "at_least": 0.9,
        "at_most": None,
        "note": "",
    }
    check = {"check": "coverage", "of": ["user"], "at_least": 0.9, "severity": "warn"}
    checked = replace(COMMIT, checks=(check,), warnings=(warning,))
    assert {"checks", "warnings"}.isdisjoint(COMMIT.to_mapping())
    text = to_json(checked.to_mapping()) + "\n"
    assert text == (GOLDEN / "commit_metadata_checked.json").read_text()
    assert CommitMetadata.from_mapping(json.loads(text), "version 3") == checked


def test_commit_metadata_is_read_back() -> None:
    assert (
        CommitMetadata.from_mapping(json.loads(to_json(COMMIT.to_mapping())), "version 3") == COMMIT
    )


def test_the_key_of_clustered_rows_is_in_the_metadata_of_their_files_only() -> None:
    plain = FileMetadata(spec_hash="5f" * 32, spec_version=1)
    clustered = replace(plain, cluster_by="user_id")
    assert json.loads(clustered.to_json()) == json.loads(plain.to_json()) | {
        "cluster_by": "user_id",
        "format": 3,  # of earlier versions none writes the file again
    }
    assert FileMetadata.from_json(clustered.to_json(), "a.parquet") == clustered
    texts = [("a", None), ("b", plain.to_json().encode()), ("c", clustered.to_json().encode())]
    require_input_order(texts[:2], "it goes", "stop")
    said = (
        r"^c: expected rows in the order of the raw rows, by which it goes, found them clustered "
    )
    with pytest.raises(InputError, match=said + r"by 'user_id' \(output.cluster_by\); stop$"):
        require_input_order(texts, "it goes", "stop")
    with pytest.raises(DataFileError, match=r"^d: the metadata under 'featstore' is not JSON"):
        require_input_order([("d", b"{")], "it goes", "stop")


def test_file_metadata_is_read_back() -> None:
    metadata = FileMetadata(spec_hash="ab", spec_version=1)
    assert FileMetadata.from_json(metadata.to_json(), "a.parquet") == metadata


def test_files_with_histories_have_a_format_that_earlier_versions_do_not_write_again() -> None:
    plain = FileMetadata(spec_hash="ab", spec_version=1)
    with_lists = replace(plain, histories=["clicks"])
    assert json.loads(plain.to_json())["format"] == 2
    assert json.loads(with_lists.to_json()) == json.loads(plain.to_json()) | {
        "format": 3,
        "histories": ["clicks"],
    }
    assert FileMetadata.from_json(with_lists.to_json(), "a.parquet") == with_lists


@pytest.mark.parametrize("number", [1, 2, 3])
def test_unknown_keys_of_a_known_format_are_ignored(number: int) -> None:
    text = to_json({"format": number, "spec_hash": "ab", "spec_version": 1, "later": True})
    assert FileMetadata.from_json(text, "a.parquet").spec_hash == "ab"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format":4}', r"a\.parquet: metadata format 4, this featstore reads up to 3; upgrade"),
        ("{", r"a\.parquet: the metadata under 'featstore' is not JSON"),
        ("[]", r"a\.parquet: expected a JSON object under 'featstore', found list"),
        ('{"format":1}', r"a\.parquet: incomplete metadata under 'featstore'"),
    ],
)
def test_metadata_that_is_not_ours_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        FileMetadata.from_json(text, "a.parquet")
