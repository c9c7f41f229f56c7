"""Each warning is demonstrated with real files, written by featstore or, with other options, by
Arrow.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import DataFileError, InputError, TableNotFoundError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.dispatch.plan import SplitSize
from featstore.extraction.units.writer import open_data_file
from featstore.loader.plan.ordering import uneven_shares
from featstore.loader.plan.splitting import make_splits
from featstore.statistics import table_lint as lint_module
from featstore.statistics.lint_rules import (
    FileFacts,
    Finding,
    file_sizes,
    footers,
    row_groups,
)
from featstore.statistics.table_lint import TableLintReport, lint
from featstore.table.metadata import FileMetadata
from featstore.table.open import open_snapshot
from featstore.tools import cli
from tests.parquet_files import put_parquet

RNG = np.random.default_rng(0)
NUM_ROWS = 32_768
SLOTS = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1, op="hash(user)", meaning="0" * 16),
        Slot(
            name="tags",
            kind=SlotKind.ID,
            number=2,
            shape=(None,),
            op="hash(tags)",
            meaning="1" * 16,
        ),
        Slot(name="price", kind=SlotKind.FLOAT, number=3, op="log1p(price)", meaning="2" * 16),
    ),
    labels=(pa.field("click", pa.int64()),),
    kept=(pa.field("request", pa.string()),),
)


def write(
    path: Path,
    *,
    num_rows: int = NUM_ROWS,
    rows_per_row_group: int = 65_536,
    schema: SlotSchema = SLOTS,
) -> None:
    """A data file as featstore writes it."""
    columns = {
        "user": pa.array(RNG.integers(1, 2**63 - 1, num_rows)),
        "tags": pa.ListArray.from_arrays(
            pa.array(np.arange(0, 2 * num_rows + 1, 2, dtype=np.int32)),
            pa.array(np.arange(2 * num_rows) % 100 + 2**62),
            type=pa.list_(pa.field("element", pa.int64(), nullable=False)),
        ),
        "price": pa.array(RNG.random(num_rows).astype(np.float32)),
        "click": pa.array([None, 0, 1, 0] * (num_rows // 4) + [0] * (num_rows % 4)),
        "request": pa.array([f"r{i}" for i in range(num_rows)]),
    }
    fields = schema.to_arrow()
    with open_data_file(
        str(path), schema, FileMetadata(spec_hash="s", spec_version=1), rows_per_row_group
    ) as writer:
        writer.write(
            pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=fields)
        )


def write_ids(
    path: Path, values: Any, *, nullable: bool = False, number: int | None = 1, **options: Any
) -> None:
    """A file with one slot, written with options of Arrow's writer."""
    schema = pa.schema(
        [Slot(name="user", kind=SlotKind.ID, number=number).to_field(nullable=nullable)]
    )
    put_parquet(path, pa.table([pa.array(values)], schema=schema), **options)


def rules(report: TableLintReport) -> list[str]:
    return [finding.rule for finding in report.findings]


def only(report: TableLintReport) -> Finding:
    """The only finding of a report, checked to have every field that a user needs."""
    assert len(report.findings) == 1, str(report)
    finding = report.findings[0]
    assert all(vars(finding).values())
    assert not report.ok
    return finding


SIGNS = RNG.integers(1, 2**63 - 1, NUM_ROWS)
REPEATED = SIGNS[np.arange(NUM_ROWS) % 50]


def test_a_table_of_featstore_has_no_findings(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.parquet")
    report = lint(str(tmp_path))
    assert report.ok, str(report)
    assert str(report).endswith("nothing found in 3 data files")


def test_a_footer_that_is_too_wide(tmp_path: Path) -> None:
    slots = [Slot(name=f"slot_{i}", kind=SlotKind.ID, number=i + 1) for i in range(3_000)]
    columns = [pa.array(np.arange(32))] * 3_000
    table = pa.table(columns, schema=pa.schema([slot.to_field() for slot in slots]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=16, use_dictionary=False)
    finding = only_rule(lint(str(tmp_path), batch_size=16), "wide footer")
    assert "a.parquet has a footer of " in finding.found
    assert "for each of 10 selected columns of 3,000" in finding.found


def only_rule(report: TableLintReport, rule: str) -> Finding:
    return next(finding for finding in report.findings if finding.rule == rule)


def test_row_groups_that_are_too_small(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows_per_row_group=8_192)
    assert only(lint(str(tmp_path))).found == "8,192 rows in the median row group"


def test_row_groups_that_are_too_large(tmp_path: Path) -> None:
    write_ids(
        tmp_path / "a.parquet",
        np.arange(1_500_000),
        row_group_size=1_500_000,
        use_dictionary=False,
        compression="zstd",
    )
    finding = only_rule(lint(str(tmp_path)), "large row groups")
    assert finding.found.startswith("1,500,000 rows, ")


def test_files_of_skewed_sizes(tmp_path: Path) -> None:
    for name, num_rows in (("a", 32_768), ("b", 32_768), ("c", 262_144)):
        values = RNG.integers(1, 2**62, num_rows)
        write_ids(tmp_path / f"{name}.parquet", values, use_dictionary=False)
    finding = only(lint(str(tmp_path)))
    assert finding.rule == "skewed files"
    assert "8.0 times the median" in finding.found


def test_too_many_small_files(tmp_path: Path) -> None:
    for i in range(16):
        write_ids(tmp_path / f"{i:02}.parquet", SIGNS, use_dictionary=False)
    finding = only(lint(str(tmp_path)))
    assert (finding.rule, finding.found) == ("small files", "16 of 16 files are below 16 MiB")
    # Ranks get even shares of large files: nothing advises what this rule finds fault with.
    assert "dispatch.split_rows" in finding.reason
    advice = uneven_shares(num_splits=7, num_workers=2)
    assert "dispatch.split_rows" in advice
    assert "smaller" not in advice


def test_a_file_of_the_smallest_row_groups_that_pass_can_be_cut_for_ranks(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", num_rows=20 * 16_384, rows_per_row_group=16_384)
    assert lint(str(tmp_path)).ok
    files = open_snapshot(str(tmp_path)).data_files
    splits = list(make_splits(files, size=SplitSize(num_rows=16_384)))
    assert not uneven_shares(len(splits), num_workers=2)


def test_row_groups_and_files_that_cut_batches(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", num_rows=60_000, rows_per_row_group=20_000)
    finding = only(lint(str(tmp_path)))
    assert (finding.rule, finding.found.partition(" ")[0]) == ("cut batches", "25%")
    assert lint(str(tmp_path), batch_size=2_000).ok


def test_partitions_smaller_than_a_batch_do_not_count_and_the_share_is_at_most_one(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.parquet", num_rows=1_000, rows_per_row_group=100)
    assert "cut batches" not in [
        finding.rule for finding in lint(str(tmp_path), batch_size=8_192).findings
    ]
    found = {
        finding.rule: finding.found for finding in lint(str(tmp_path), batch_size=999).findings
    }
    assert found["cut batches"].startswith("100% of the batches")


def test_what_a_table_has_already_is_not_advised(tmp_path: Path) -> None:
    """Tables whose rules once fired although the advice was followed already."""
    rest = tmp_path / "rest"
    for day in range(3):
        # The last batch of a day is rarely full, however the day is cut into files.
        (rest / f"dt={day}").mkdir(parents=True)
        write(rest / f"dt={day}" / "a.parquet", num_rows=20_000)
    assert lint(str(rest)).ok, str(lint(str(rest)))

    # Runs of three floats: snappy halves them, and a dictionary would save nothing.
    runs = Slot(name="price", kind=SlotKind.FLOAT, number=3, op="p", meaning="2" * 16)
    values = np.repeat(RNG.random(NUM_ROWS).astype(np.float32), 3)[:NUM_ROWS]
    with open_data_file(
        str(tmp_path / "runs.parquet"),
        SlotSchema(slots=(runs,)),
        FileMetadata(spec_hash="s", spec_version=1),
        65_536,
    ) as writer:
        writer.write(
            pa.RecordBatch.from_arrays(
                [pa.array(values)], schema=SlotSchema(slots=(runs,)).to_arrow()
            )
        )
    assert lint(str(tmp_path / "runs.parquet")).ok, str(lint(str(tmp_path / "runs.parquet")))


@pytest.mark.parametrize(
    ("group_rows", "row_bytes", "expected"),
    [
        # 65,536 rows of 4,000 slots are too large, 16,384 are not.
        ((65_536,), 20_000, "set output.rows_per_row_group to 16,384"),
        ((16_384, 16_384, 9), 20_000, None),
        # Rows of 200 kB: 2,048 of them fill a row group, and fewer than 16,384 are not too few.
        ((2_048, 2_048), 200_000, None),
        ((256, 256), 200_000, "set output.rows_per_row_group to 2,048"),
    ],
)
def test_rows_of_a_row_group_are_advised_by_their_width(
    group_rows: tuple[int, ...], row_bytes: int, expected: str | None
) -> None:
    findings = [*row_groups([facts(group_rows=group_rows, row_bytes=row_bytes)])]
    assert [finding.advice.partition(", and")[0] for finding in findings] == (
        [expected] if expected else []
    )


def facts(
    *, group_rows: tuple[int, ...], row_bytes: int, footer_bytes: int = 0, path: str = "a.parquet"
) -> FileFacts:
    """The footer of a file with rows of one size."""
    return FileFacts(
        path=path,
        size_bytes=sum(group_rows) * row_bytes,
        footer_bytes=footer_bytes,
        group_rows=group_rows,
        group_bytes=tuple(rows * row_bytes for rows in group_rows),
        columns=(),
        fields=(),
    )


@pytest.mark.parametrize(
    ("group_rows", "expected"),
    [
        ((8_192,) * 8, "set output.rows_per_row_group to 65,536"),
        ((65_536,), "extract fewer slots into one table"),
        ((500,), "write fewer and larger partitions"),
    ],
)
def test_a_wide_footer_is_shortened_by_what_the_file_lacks(
    group_rows: tuple[int, ...], expected: str
) -> None:
    file = facts(group_rows=group_rows, row_bytes=1_000, footer_bytes=3 << 20)
    (finding,) = footers([file])
    assert finding.advice.startswith(expected)


def test_small_files_that_are_whole_partitions_are_not_told_to_hold_more_rows() -> None:
    hours = [(f"dt=1/hour={hour}/a.parquet", 1_000) for hour in range(24)]
    (finding,) = file_sizes(hours)
    assert "rows_per_file" not in finding.advice
    (finding,) = file_sizes([*hours, ("dt=1/hour=0/b.parquet", 1_000)])
    assert "rows_per_file" in finding.advice


def test_slots_that_may_be_null_though_none_is(tmp_path: Path) -> None:
    write_ids(tmp_path / "a.parquet", SIGNS, nullable=True, use_dictionary=False)
    assert (
        only(lint(str(tmp_path))).found
        == "1 slots that may be null, although no nulls are known in them: user"
    )
    write_ids(
        tmp_path / "a.parquet", [None, *SIGNS[1:].tolist()], nullable=True, use_dictionary=False
    )
    assert lint(str(tmp_path)).ok


def test_lists_whose_elements_may_be_null(tmp_path: Path) -> None:
    field = Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=1).to_field(nullable=True)
    pq.write_table(
        pa.table([pa.array([[1, 2]] * NUM_ROWS, field.type)], schema=pa.schema([field])),
        tmp_path / "a.parquet",
    )
    assert only(lint(str(tmp_path))).rule == "nullable slots"


def test_values_that_repeat_without_a_dictionary(tmp_path: Path) -> None:
    write_ids(tmp_path / "a.parquet", REPEATED, use_dictionary=False)
    assert only(lint(str(tmp_path))).rule == "no dictionary"


def test_a_dictionary_of_values_that_do_not_repeat(tmp_path: Path) -> None:
    write_ids(tmp_path / "a.parquet", SIGNS, use_dictionary=True)
    assert only(lint(str(tmp_path))).rule == "dictionary in vain"


@pytest.mark.parametrize("codec", ["none", "gzip", "brotli"])
def test_codecs_that_do_not_pay_off(tmp_path: Path, codec: str) -> None:
    write_ids(tmp_path / "a.parquet", REPEATED, compression=codec)
    finding = only(lint(str(tmp_path)))
    assert (finding.rule, finding.threshold) == ("codec", "snappy or zstd")


@pytest.mark.parametrize("encoding", ["BYTE_STREAM_SPLIT", "PLAIN_DICTIONARY"])
def test_encodings_that_decode_slowly(tmp_path: Path, encoding: str) -> None:
    options = (
        {"version": "1.0"}
        if encoding == "PLAIN_DICTIONARY"
        else {"column_encoding": {"user": encoding}}
    )
    values = REPEATED if encoding == "PLAIN_DICTIONARY" else SIGNS
    write_ids(
        tmp_path / "a.parquet", values, use_dictionary=encoding == "PLAIN_DICTIONARY", **options
    )
    finding = only(lint(str(tmp_path)))
    assert finding.found == f"1 columns are encoded as {encoding}: user"


def test_slots_without_field_ids(tmp_path: Path) -> None:
    write_ids(tmp_path / "a.parquet", REPEATED, number=None)
    assert only(lint(str(tmp_path))).found == "1 slots without a Parquet field id: user"


def test_files_of_both_formats_are_no_mixed_schemas(tmp_path: Path) -> None:
    old = Path(__file__).parents[1] / "golden" / "data_file_1.parquet"
    shutil.copy(old, tmp_path / "a.parquet")
    rows = featstore.open_table(str(tmp_path)).to_arrow()
    schema = open_snapshot(str(tmp_path)).schema
    metadata = FileMetadata(spec_hash="5f" * 32, spec_version=1)
    with open_data_file(str(tmp_path / "b.parquet"), schema, metadata, 100) as writer:
        stored = pq.read_table(old).select(schema.column_names).cast(schema.to_arrow())
        writer.write_row_group(stored)
    assert featstore.open_table(str(tmp_path)).to_arrow().equals(pa.concat_tables([rows, rows]))
    assert "mixed schemas" not in rules(lint(str(tmp_path)))


def test_files_whose_columns_differ_even_if_they_cannot_be_read_as_one_table(
    tmp_path: Path,
) -> None:
    other = SlotSchema(
        slots=(Slot(name="user", kind=SlotKind.ID, number=1, op="hash(user)", meaning="9" * 16),)
    )
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", schema=other)
    finding = only(lint(str(tmp_path)))
    assert finding.found.startswith(
        "1 columns differ between files, 4 are not in all: user is int64, id 1, meaning 0000"
    )
    pq.write_table(pa.table({"user": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(DataFileError, match="column 'user'"):
        featstore.open_table(tmp_path).to_arrow()
    assert "mixed schemas" in rules(lint(str(tmp_path)))


def test_a_delta_table_is_linted_at_its_version(tmp_path: Path) -> None:
    put_parquet(
        tmp_path / "raw.parquet", {"user": [f"u{i}" for i in range(2_000)], "clicked": [1] * 2_000}
    )
    document: dict[str, Any] = {
        "spec": 1,
        "inputs": {"user": "string", "clicked": "long"},
        "labels": {"click": "clicked"},
    }
    document["slots"] = [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}]
    for rows_per_row_group in (100, 65_536):
        spec = document | {
            "output": {"rows_per_row_group": rows_per_row_group},
            "keep": ["user"][: rows_per_row_group // 65_536],
        }
        featstore.extract(featstore.load_spec(spec), tmp_path / "raw.parquet", tmp_path / "table")
    table = str(tmp_path / "table")
    assert (lint(table).num_files, lint(table).ok) == (1, True), str(lint(table))
    assert "small row groups" in rules(featstore.open_table(table, 0).lint())
    assert featstore.open_table(table).lint(batch_size=16).ok


def test_a_sample_of_very_many_files_is_read_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint_module, "MAX_FOOTERS", 4)
    for i in range(10):
        write_ids(tmp_path / f"{i}.parquet", REPEATED)
    report = lint(str(tmp_path))
    assert (report.num_files, report.num_read) == (10, 4)
    assert str(report).endswith("nothing found in 10 data files, with 4 footers read")


def test_only_footers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path)
    data, footer = path.read_bytes(), pq.read_metadata(path).serialized_size + 8
    path.write_bytes(b"PAR1" + bytes(len(data) - footer - 4) + data[-footer:])
    assert lint(str(tmp_path)).ok


def test_what_cannot_be_linted(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="no table at"):
        lint(str(tmp_path))
    write(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="batch_size: expected at least 1, found 0"):
        lint(str(tmp_path), batch_size=0)
    with pytest.raises(TableNotFoundError, match="expected a Delta table to open version 3"):
        lint(str(tmp_path), 3)
    (tmp_path / "b.parquet").write_text("no Parquet at all")
    with pytest.raises(DataFileError, match=r"b\.parquet is not a Parquet file"):
        lint(str(tmp_path))


def test_the_command_exits_with_0_when_clean_and_with_1_when_not(tmp_path: Path) -> None:
    write(tmp_path / "clean" / "a.parquet")
    write_ids(tmp_path / "slow" / "a.parquet", REPEATED, use_dictionary=False)
    clean = CliRunner().invoke(cli.cli, ["table", "check", "--layout", str(tmp_path / "clean")])
    assert (clean.exit_code, clean.output.endswith("nothing found in 1 data files\n")) == (0, True)
    slow = CliRunner().invoke(cli.cli, ["table", "check", "--layout", str(tmp_path / "slow")])
    assert slow.exit_code == 1
    assert "no dictionary: 1 slots" in slow.output
    assert "To do: " in slow.output


def test_the_command_exits_with_2_where_there_is_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["featstore", "table", "check", "--layout", str(tmp_path / "nothing")]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
