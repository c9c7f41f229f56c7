"""Tables of other writers are read as they are meant and never harmed, or refused by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from featstore import FeatureLoader, SampleDataset, Staging
from featstore.api import extract
from featstore.base.errors import DataFileError, InputError
from featstore.explore.table import open_table
from featstore.extraction.deletion import delete_rows
from featstore.extraction.rewriting import compact
from featstore.table.vacuum import vacuum
from tests.masked_tables import masked_table

SPEC = (
    "spec: 1\ninputs: {u: string, k: string}\nslots:\n  - {slot: 1, name: user2, op: hash, of: u}\n"
)


def field(
    name: str, type_: str, metadata: dict[str, Any] | None = None, *, nullable: bool = True
) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata or {}}


def foreign_table(
    root: Path,
    columns: dict[str, Any],
    fields: list[dict[str, Any]],
    protocol: Any = None,
    configuration: Any = None,
    **add: Any,
) -> str:
    """A table with one data file and one commit, written by hand."""
    table = root / "table"
    (table / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table(columns), table / "f.parquet")
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata: dict[str, Any] = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration or {},
        "createdTime": 0,
    }
    file = {
        "path": "f.parquet",
        "partitionValues": {},
        "size": (table / "f.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":2}',
    }
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "WRITE", "inCommitTimestamp": 1}},
        {"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
        {"add": file | add},
    ]
    (table / f"_delta_log/{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(table)


def features(*names: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    reading = {"minReaderVersion": 3, "readerFeatures": list(readers)}
    return {
        **(reading if readers else {"minReaderVersion": 1}),
        "minWriterVersion": 7,
        "writerFeatures": list(names),
    }


def add_slot(root: Path, table: str) -> None:
    pq.write_table(pa.table({"u": ["a", "b"], "k": ["x", "y"]}), root / "raw.parquet")
    (root / "spec.yaml").write_text(SPEC)
    extract(str(root / "spec.yaml"), str(root / "raw.parquet"), table)


def everything(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (root / "table").rglob("*") if p.is_file()}


WRITERS: dict[str, Callable[[Path, str], object]] = {
    "extract": add_slot,
    "delete": lambda root, table: delete_rows(table, "x = 2"),
    "compact": lambda root, table: compact(table),
}
RULES: dict[str, Any] = {
    "constraint": (
        {"configuration": {"delta.constraints.known": "x > 0"}},
        r"the CHECK constraint known \(x > 0\)",
    ),
    "append-only": ({"configuration": {"delta.appendOnly": "true"}}, "append-only"),
    "changes": ({"configuration": {"delta.enableChangeDataFeed": "true"}}, "change data feed"),
    "manifest": (
        {"configuration": {"delta.compatibility.symlinkFormatManifest.enabled": "true"}},
        "symlink manifest",
    ),
    "uniform": (
        {"configuration": {"delta.universalFormat.enabledFormats": "iceberg"}},
        "metadata of other formats",
    ),
    "generated": (
        {"fields": [field("x", "long", {"delta.generationExpression": "1"})]},
        r"a generated column \(x\)",
    ),
    "identity": (
        {"fields": [field("x", "long", {"delta.identity.start": 1})]},
        r"an identity column \(x\)",
    ),
    "varchar": (
        {"fields": [field("x", "long", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})]},
        "a char or varchar column",
    ),
    "invariant": (
        {"fields": [field("x", "long", {"delta.invariants": '{"expression": "x > 0"}'})]},
        "an invariant",
    ),
    "newer": ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}}, "writer version 6"),
} | {
    name: ({"protocol": features(name)}, f"the table feature {name}")
    for name in (
        *("rowTracking", "domainMetadata", "inCommitTimestamp", "clustering", "identityColumns"),
        *("allowColumnDefaults", "icebergCompatV2", "brandNew"),
    )
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_not_kept_is_refused_by_name_before_any_work(
    tmp_path: Path, rule: str, writer: str
) -> None:
    options, message = RULES[rule]
    options = {"fields": [field("x", "long")]} | options
    table = foreign_table(tmp_path, {"x": [1, 2]}, **options)
    before = everything(tmp_path)
    with pytest.raises(InputError, match=message):
        WRITERS[writer](tmp_path, table)
    assert everything(tmp_path) == before
    if rule != "newer":
        assert open_table(table).num_rows == 2


def test_a_vacuum_refuses_features_that_it_does_not_know(tmp_path: Path) -> None:
    protocol = features("vacuumProtocolCheck", readers=("vacuumProtocolCheck",))
    table = foreign_table(tmp_path, {"x": [1]}, [field("x", "long")], protocol)
    with pytest.raises(InputError, match=r"vacuum: .* the table feature vacuumProtocolCheck"):
        vacuum(table)


def test_features_of_which_nothing_is_used_ask_nothing(tmp_path: Path) -> None:
    harmless = ("appendOnly", "invariants", "checkConstraints", "changeDataFeed")
    table = foreign_table(tmp_path, {"x": [1, 2]}, [field("x", "long")], features(*harmless))
    assert delete_rows(table, "x = 2").num_rows == 1


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("version", [(1, 2), (2, 5)])
def test_a_table_with_column_mapping_is_not_written_to_whatever_the_protocol_says(
    tmp_path: Path, mode: str, version: tuple[int, int]
) -> None:
    protocol = {"minReaderVersion": version[0], "minWriterVersion": version[1]}
    mapped = field(
        "user", "long", {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 1}
    )
    configuration = {"delta.columnMapping.mode": mode}
    table = foreign_table(tmp_path, {"col-1": [1, 2]}, [mapped], protocol, configuration)
    before = everything(tmp_path)
    acts: list[Any] = [
        lambda url: delete_rows(url, "user is null"),
        compact,
        vacuum,
        lambda url: add_slot(tmp_path, url),
    ]
    for act in acts:
        with pytest.raises((DataFileError, InputError), match=rf"column mapping .*mode = {mode}"):
            act(table)
    assert everything(tmp_path) == before


def test_a_table_with_deletion_vectors_is_not_written_to(tmp_path: Path) -> None:
    rows = pa.table({"x": [1, 2, 3]})
    table = masked_table(tmp_path / "table", {"f.parquet": (rows, [1])})
    before = everything(tmp_path)
    acts: list[Any] = [
        *(lambda url, act=act: act(tmp_path, url) for act in WRITERS.values()),
        vacuum,
    ]
    for act in acts:
        with pytest.raises(InputError, match="the table feature deletionVectors"):
            act(table)
    assert everything(tmp_path) == before
    assert open_table(table).to_arrow()["x"].to_pylist() == [1, 3]


def test_a_file_that_is_gone_is_told_of_where_the_log_has_no_row_counts(tmp_path: Path) -> None:
    table = foreign_table(tmp_path, {"x": [1, 2]}, [field("x", "long")], stats=None)
    assert open_table(table).num_rows == 2
    (tmp_path / "table/f.parquet").unlink()
    with pytest.raises(
        DataFileError, match=r"table/f\.parquet: .* found none: the log of \S*/table names it"
    ):
        open_table(table)


READ: dict[str, Callable[[str], object]] = {
    "loader": lambda table: list(FeatureLoader(table, slots=["x"], batch_size=2)),
    "to_arrow": lambda table: open_table(table).to_arrow(),
    "head": lambda table: open_table(table).head(1),
    "samples": lambda table: SampleDataset(
        table, slots=["x"], staging=Staging(directory=f"{table}/../ssd")
    ).close(),
}


@pytest.mark.parametrize("read", READ)
def test_columns_that_no_file_has_are_warned_of_once(
    tmp_path: Path, read: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = foreign_table(tmp_path, {"old": [1, 2]}, [field("x", "long")])
    READ[read](table)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith(f"{table}: none of the selected columns (x) is in any file")


DECODED: dict[str, Callable[..., object]] = {
    "loader": lambda table, staging: list(FeatureLoader(table, slots=["x"], staging=staging)),
    "samples": lambda table, staging: SampleDataset(table, slots=["x"], staging=staging).close(),
}


@pytest.mark.parametrize(("name", "num_warnings"), [("x", 0), ("old", 1)])
@pytest.mark.parametrize("read", DECODED)
def test_columns_that_no_file_has_are_warned_of_where_they_are_in_the_cache_of_decoded_ones(
    tmp_path: Path, read: str, name: str, num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    nulls = pa.array([None, None], pa.int64())
    table = foreign_table(tmp_path, {name: nulls}, [field("x", "long")])
    staging = Staging(directory=str(tmp_path / "ssd"), decoded=read == "loader")
    for _ in range(2):
        caplog.clear()
        DECODED[read](table, staging)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == num_warnings
    assert all("none of the selected columns (x) is in any file" in each for each in warnings)


@pytest.mark.parametrize("read", READ)
def test_columns_that_some_file_has_are_not_warned_of(
    tmp_path: Path, read: str, caplog: pytest.LogCaptureFixture
) -> None:
    READ[read](foreign_table(tmp_path, {"x": [1, 2]}, [field("x", "long"), field("y", "long")]))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_an_unsigned_id_beyond_63_bits_is_refused_and_not_folded_into_a_bucket(
    tmp_path: Path,
) -> None:
    ids = pa.array([2**63 + 5, 2**64 - 1], pa.uint64())
    table = foreign_table(tmp_path, {"x": ids}, [field("x", "long")])
    for slot in ("x", {"name": "x", "buckets": 1000}):
        with pytest.raises(DataFileError, match=r"f\.parquet: column 'x': .* 9223372036854775813"):
            list(FeatureLoader(table, slots=[slot]))


def test_a_binary_partition_key_is_refused_by_name(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = pa.table({"k": pa.array([b"a\xff", b"b"], pa.binary()), "x": [1, 2]})
    write_deltalake(table, rows, partition_by=["k"])
    before = everything(tmp_path)
    acts: list[Any] = [open_table, lambda url: delete_rows(url, "x = 1"), compact, vacuum]
    for act in (*acts, lambda url: add_slot(tmp_path, url)):
        with pytest.raises(DataFileError, match="Delta table with the binary partition key 'k'"):
            act(table)
        (tmp_path / "raw.parquet").unlink(missing_ok=True)
        (tmp_path / "spec.yaml").unlink(missing_ok=True)
    assert everything(tmp_path) == before


FOREIGN = {
    "age": pa.array([7, 8], pa.int32()),
    "price": pa.array([0.1, 1e300]),
    "big": pa.array([16777217.0, 16777219.0]),
    "ok": pa.array([True, False]),
    "n": pa.array(["a", "b"]),
}
FIELDS = [
    field("age", "integer", {"comment": "years"}),
    field("price", "double"),
    field("big", "double", {"comment": "a number"}),
    field("ok", "boolean"),
    field("n", "string", {"comment": "a name"}),
]


def fields_of(table: str) -> list[dict[str, Any]]:
    return list(json.loads(DeltaTable(table).schema().to_json())["fields"])


def test_fields_of_other_writers_stay_to_the_byte_and_new_ones_are_appended(
    tmp_path: Path,
) -> None:
    table = foreign_table(tmp_path, FOREIGN, FIELDS)
    add_slot(tmp_path, table)
    found = fields_of(table)
    assert found[:5] == FIELDS
    assert [f["name"] for f in found[5:]] == ["user2"]


def test_a_deletion_leaves_values_and_types_of_other_writers_as_they_are(tmp_path: Path) -> None:
    table = foreign_table(tmp_path, FOREIGN, FIELDS)
    assert delete_rows(table, "big = 16777217.0").num_rows == 1
    (file,) = DeltaTable(table).file_uris()
    left = pq.read_table(file.removeprefix("file://"))
    assert left.to_pydict() == {name: [column[1].as_py()] for name, column in FOREIGN.items()}
    assert {name: left.schema.field(name).type for name in FOREIGN} == {
        name: column.type for name, column in FOREIGN.items()
    }
    assert fields_of(table) == FIELDS


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("number = 0", "ad"),
        ("number is null", "b"),
        ("number < 1", "ad"),
        ("number != 5", "ad"),
        ("number in (0, 7)", "ad"),
        ("number = 0 and dt = '2'", "d"),
        ("small = 0 or number is null", "bd"),
        ("flag = 0", "ad"),
        ("flag is null", "b"),
        ("flag = 1", "c"),
        ("many is null", "b"),
        ("many is not null", "acd"),
        ("ratio = 0", "a"),
        ("ratio is null", "bd"),
        ("sample(number, 1.0, 1)", "acd"),
        ("dt = '1' and number % 2 = 0", "a"),
    ],
)
def test_a_deletion_finds_the_zeros_and_the_nulls_of_other_writers(
    tmp_path: Path, where: str, ids: str
) -> None:
    rows = {
        "id": ["a", "b", "c", "d"],
        "number": pa.array([0, None, 5, 0], pa.int64()),
        "small": pa.array([1, 2, 3, 0], pa.int8()),
        "flag": pa.array([False, None, True, False]),
        "many": pa.array([[0], None, [0, None], []], pa.list_(pa.int32())),
        "ratio": pa.array([0.0, None, 1.5, math.nan], pa.float32()),
        "dt": ["1", "1", "1", "2"],
    }
    table, before = str(tmp_path / "table"), pa.table(rows)
    write_deltalake(table, before, partition_by=["dt"])
    assert delete_rows(table, where, dry_run=True).num_rows == len(ids)
    assert delete_rows(table, where).num_rows == len(ids)
    left = before.filter([id_ not in ids for id_ in rows["id"]])
    found = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert str(found.to_pylist()) == str(left.to_pylist())  # as texts, NaN is equal
    assert not delete_rows(table, where).num_rows


def test_a_deletion_tells_zeros_from_missing_ids_by_who_wrote_the_column(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    pq.write_table(pa.table({"u": ["a", None], "k": ["x", "y"]}), tmp_path / "raw.parquet")
    (tmp_path / "spec.yaml").write_text(SPEC)
    extract(str(tmp_path / "spec.yaml"), str(tmp_path / "raw.parquet"), table)
    rows = pa.table({"user2": [0, 6], "score": [0, 1]})
    write_deltalake(table, rows, mode="append", schema_mode="merge")
    counts = {
        where: delete_rows(table, where, dry_run=True).num_rows
        for where in ("user2 = 0", "user2 is null", "score = 0", "score is null")
    }
    assert counts == {"user2 = 0": 0, "user2 is null": 2, "score = 0": 1, "score is null": 2}


def test_columns_that_other_engines_add_to_a_table_of_ours_stay_as_they_are(
    tmp_path: Path,
) -> None:
    table = str(tmp_path / "table")
    add_slot(tmp_path, table)
    rows = pa.table({"user2": [5, 6], "score": [16777217.0, 1e300]})
    write_deltalake(table, rows, mode="append", schema_mode="merge")
    fields = fields_of(table)
    delete_rows(table, "user2 = 5")
    left = DeltaTable(table).to_pyarrow_table().to_pydict()
    assert sorted(left["score"], key=str) == [1e300, None, None]
    assert fields_of(table) == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([field("x", "long", nullable=False)], "'x' of another writer may not be null .* not writ"),
        ([field("user2", "double")], "'user2' is double of another writer, .* the slot 'user2'"),
        ([field("user2", "string")], "'user2' is string of another writer, .* the slot 'user2'"),
    ],
)
def test_a_column_that_a_run_cannot_write_as_it_is_declared_is_refused(
    tmp_path: Path, fields: list[dict[str, Any]], message: str
) -> None:
    table = foreign_table(tmp_path, {fields[0]["name"]: [1.0, 2.0]}, fields)
    before = everything(tmp_path)
    with pytest.raises(InputError, match=message):
        add_slot(tmp_path, table)
    assert everything(tmp_path) == before


def test_a_kept_column_may_be_one_of_another_writer_of_its_type(tmp_path: Path) -> None:
    table = foreign_table(tmp_path, {"k": ["a"]}, [field("k", "string", {"comment": "a key"})])
    pq.write_table(pa.table({"u": ["a", "b"], "k": ["x", "y"]}), tmp_path / "raw.parquet")
    (tmp_path / "spec.yaml").write_text(f"{SPEC}keep: [k]\n")
    spec, raw = str(tmp_path / "spec.yaml"), str(tmp_path / "raw.parquet")
    extract(spec, raw, table)
    extract(spec, raw, table)
    assert fields_of(table)[0] == field("k", "string", {"comment": "a key"})
    assert open_table(table).to_arrow()["k"].to_pylist() == ["x", "y"]


@pytest.mark.parametrize(
    ("written", "declared", "role"),
    [
        (pa.array([1, 2**31 - 1], pa.int32()), "long", "labels: {c: c}"),
        (pa.array([0.1, None], pa.float32()), "double", "labels: {c: c}"),
        (pa.array([True, None]), "boolean", "keep: [c]"),
        (pa.array(["x", None], pa.large_string()), "string", "keep: [c]"),
    ],
)
def test_labels_and_kept_columns_are_of_the_widest_types_which_columns_of_others_may_have(
    tmp_path: Path, written: pa.Array, declared: str, role: str
) -> None:
    """Numbers of 32 bits are 64 wide in a run: in a narrower column they might not fit."""
    table = foreign_table(tmp_path, {"c": written.slice(0, 1)}, [field("c", declared)])
    pq.write_table(pa.table({"u": ["a", "b"], "c": written}), tmp_path / "raw.parquet")
    spec = SPEC.replace("u: string", f"u: string, c: {declared}")
    (tmp_path / "spec.yaml").write_text(f"{spec}{role}\n")
    extract(str(tmp_path / "spec.yaml"), str(tmp_path / "raw.parquet"), table)
    assert fields_of(table)[0] == field("c", declared)
    expected = written.to_pylist()
    assert DeltaTable(table).to_pyarrow_table()["c"].to_pylist() == expected
    if declared == "double":  # read as a slot, as any column of numbers of another writer
        expected = pa.array(expected, pa.float32()).to_pylist()
    assert open_table(table).to_arrow()["c"].to_pylist() == expected
