"""`featstore train check`: what a config reads, without a run."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import featstore
from featstore.base.errors import ConfigError, MissingValueError, SelectionError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.train_check import MixedCheck, TrainCheck
from featstore.loader.train_check import check as check_any
from featstore.samples.sample_dataset import SampleDataset
from featstore.tools.cli.program import cli
from tests.parquet_files import put_parquet

SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {
        "user": "string",
        "words": "list<string>",
        "cost": "double",
        "clicked": "long",
        "id": "string",
    },
    "labels": {"click": "clicked"},
    "keep": ["id"],
    "slots": [
        {"slot": 1, "name": "user", "op": "hash", "of": "user"},
        {"slot": 2, "name": "tags", "op": "hash", "of": "words"},
        {"slot": 3, "name": "price", "op": "identity", "of": "cost"},
        {"slot": 4, "name": "tags_2", "op": "hash", "of": "words"},
    ],
}
NUM_ROWS = 300


def check(*arguments: Any, **options: Any) -> TrainCheck:
    """The check of a config of one table."""
    found = check_any(*arguments, **options)
    assert isinstance(found, TrainCheck)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two days of a table, and configs of it."""
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        rows = range(day * 1_000, day * 1_000 + NUM_ROWS)
        put_parquet(
            tmp_path / "raw" / f"dt={day}" / "a.parquet",
            {
                "user": [None if row % 7 == 0 else f"u{row % 50}" for row in rows],
                "words": [[f"t{i}" for i in range(row % 3)] for row in rows],
                "cost": [float(row) for row in rows],
                "clicked": [row % 2 for row in rows],
                "id": [str(row) for row in rows],
            },
        )
    featstore.extract(featstore.load_spec(SPEC), "raw", "table", partition_from_path=["dt"])
    return tmp_path


def config(here: Path, **keys: Any) -> str:
    options = {"table": "table", "slots": ["user", "tags", "price"], "labels": ["click"]}
    (here / "train.yaml").write_text(yaml.safe_dump(options | keys))
    return str(here / "train.yaml")


def test_a_cache_that_holds_the_selected_columns_but_not_whole_files_is_told(here: Path) -> None:
    whole = check(config(here)).files_bytes
    for mode, budget_bytes, is_told in (
        ("whole", whole - 1, True),
        ("whole", whole, False),
        ("ranges", whole - 1, False),
        ("auto", whole - 1, False),  # a local table is read in place
    ):
        staging = {"directory": str(here / "cache"), "mode": mode, "budget_bytes": budget_bytes}
        found = check(config(here, staging=staging, slots=["user"]))
        assert ("mode ranges keeps the selected columns" in str(found)) is is_told, (
            mode,
            str(found),
        )
    assert found.as_dict()["cache_bytes"] is None


def test_columns_are_those_of_the_batches(here: Path) -> None:
    slots = [
        {"name": "user", "buckets": 100, "dtype": "int32"},
        "tags",
        {"name": "tags_2", "pad": 5},
        "price",
    ]
    url = config(here, slots=slots, extras=["id"])
    assert not check(url).is_limit
    found = {column.name: column for column in check(url).columns}
    with FeatureLoader.from_config(url) as loader:
        batch = next(iter(loader))
        for name, shape in (("user", "[B]"), ("tags_2", "[B, 5]"), ("price", "[B]")):
            tensor = batch[name]
            assert found[name].batch == shape
            assert str(tensor.dtype) == f"torch.{found[name].dtype}"
            item_bytes = tensor.element_size() * tensor.numel() / batch.num_rows
            assert found[name].batch_bytes_per_row == item_bytes
        assert (found["tags"].batch, found["tags"].dtype) == ("jagged", "int64")
        values = batch["tags"].values.numel() + sum(len(row) == 0 for row in _tags(batch))
        assert found["tags"].batch_bytes_per_row == pytest.approx(8 + 8 * values / batch.num_rows)
    assert [(column.role, column.dtype) for column in found.values()][4:] == [
        ("label", "float32"),
        ("extra", "string"),
    ]


def test_a_list_that_is_cut_takes_at_most_what_its_limit_allows(here: Path) -> None:
    slots: list[Any] = [{"name": "tags", "max_len": 1}, {"name": "tags_2", "max_len": 100}]
    tags, tags_2, _ = check(config(here, slots=slots)).columns
    assert (tags.batch_bytes_per_row, tags.is_limit) == (16, True)
    # The means are 4 values in 3 rows, as an empty list counts as one.
    assert tags_2.batch_bytes_per_row == pytest.approx(8 + 8 * 4 / 3)
    assert tags_2.is_limit
    assert "at most 16.0" in str(check(config(here, slots=slots)))


def _tags(batch: Any) -> list[Any]:
    offsets = batch["tags"].offsets.tolist()
    values = batch["tags"].values.tolist()
    return [values[offsets[i] : offsets[i + 1]] for i in range(batch.num_rows)]


def test_stored_bytes_are_those_of_the_column_chunks(here: Path) -> None:
    found = {column.name: column for column in check(config(here)).columns}
    files = [pq.ParquetFile(path) for path in sorted((here / "table").glob("dt=*/*.parquet"))]
    assert len(files) == 2
    for name, leaf in (("user", "user"), ("tags", "tags.list.element"), ("click", "click")):
        stored = sum(
            group.column(i).total_compressed_size
            for file in files
            for group in map(file.metadata.row_group, range(file.metadata.num_row_groups))
            for i in range(group.num_columns)
            if group.column(i).path_in_schema == leaf
        )
        assert found[name].stored_bytes_per_row == pytest.approx(stored / (2 * NUM_ROWS))


def test_files_rows_and_splits_follow_where_and_split_size(here: Path) -> None:
    whole = check(config(here))
    assert (whole.num_files, whole.num_rows, whole.num_splits) == (2, 2 * NUM_ROWS, 2)
    day = check(config(here, where="dt = '1'", dispatch={"split_rows": 100}))
    assert (day.num_files, day.num_rows, day.version) == (1, NUM_ROWS, 0)
    assert day.num_splits == 1  # of one row group


def test_the_head_is_what_a_batch_holds_in_the_order_of_the_files(here: Path) -> None:
    url = config(here, shuffle=True, drop_last=True, batch_size=5_000, where="price >= 1003")
    found = check(url, head=3).head
    assert found is not None
    assert found["price"] == [1003.0, 1004.0, 1005.0]
    assert found["click"] == [1.0, 0.0, 1.0]
    assert [len(tags) for tags in found["tags"]] == [1, 2, 0]
    none = check(config(here, where="price > 9999"), head=3)
    assert none.head is not None
    assert "no row matches" in str(none)


def test_ids_of_the_head_are_shown_as_texts_and_stay_signs_in_json(here: Path) -> None:
    slots = ["user", {"name": "tags", "pad": 2}, {"name": "tags_2", "buckets": 100}]
    found = check(config(here, slots=slots), head=2)
    lines = {line.split()[0]: line.split()[1:] for line in str(found).splitlines()[-4:]}
    assert found.head is not None
    # Row 1,001 has no user. What has become a bucket is no sign any more.
    assert lines["user"] == ["u0", "0"]
    assert lines["tags"] == ["t0", "0", "t0", "t1"]
    assert lines["tags_2"] == [str(bucket) for row in found.head["tags_2"] for bucket in row]
    as_json = json.loads(json.dumps(found.as_dict()))
    assert as_json["head"]["user"] == found.head["user"]
    assert "names" not in as_json


def test_a_long_list_is_shown_by_its_ends(tmp_path: Path) -> None:
    put_parquet(tmp_path / "a.parquet", {"few": [list(range(10))], "many": [list(range(2_000))]})
    path = tmp_path / "train.yaml"
    path.write_text(f"table: {tmp_path}\nslots: [few, many]\n")
    few, many = (" ".join(line.split()) for line in str(check(str(path), head=1)).splitlines()[-2:])
    assert few == "few 0 1 2 3 4 5 6 7 8 9"
    assert many == "many 0 1 2 3 4 ... (2,000 values) ... 1995 1996 1997 1998 1999"


def test_ids_without_texts_are_shown_short(here: Path) -> None:
    spec = featstore.load_spec(SPEC | {"values": "none"})
    featstore.extract(spec, "raw", "nameless", partition_from_path=["dt"])
    found = check(config(here, table="nameless", slots=["user"], labels=[]), head=1)
    assert found.head is not None
    [sign] = found.head["user"]
    assert str(found).splitlines()[-1].split() == ["user", f"{str(sign)[:6]}…"]


def test_the_configs_store_and_cache_are_not_touched(here: Path) -> None:
    url = config(
        here,
        dispatch={"store": f"sqlite://{here}/x.db", "run_id": "r"},
        staging={"directory": str(here / "ssd"), "mode": "whole", "decoded": True},
    )
    before = sorted(here.iterdir())
    assert check(url, head=2).num_rows == 2 * NUM_ROWS
    assert sorted(here.iterdir()) == [*before]


def test_slot_groups_count_with_their_own_files(here: Path) -> None:
    wider = SPEC | {
        "slots": [*SPEC["slots"], {"slot": 5, "name": "extra", "op": "log1p", "of": "cost"}]
    }
    featstore.extract(
        featstore.load_spec(wider), "raw", "table", partition_from_path=["dt"], group="more"
    )
    found = check(config(here, slots=["extra", "user"]), head=1)
    assert all(column.stored_bytes_per_row > 0 for column in found.columns)
    assert found.head is not None
    assert set(found.head) == {"extra", "user", "click"}


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"slots": []}, ConfigError, "slots: expected at least one slot"),
        ({"labels": ["user"]}, ConfigError, "'user': expected a number, found the signs"),
        ({"slots": ["usr"]}, SelectionError, "no slot matches 'usr'.*did you mean 'user'"),
        ({"batchsize": 5}, ConfigError, "unknown key 'batchsize'; did you mean 'batch_size'"),
        ({"batch_size": 0}, ConfigError, "batch_size: expected an integer of 1 or more"),
        ({"shuffle": {"window": 5}}, ConfigError, "shuffle: unknown key 'window'"),
        ({"where": "dt = '9'"}, SelectionError, "matches no partition of the table"),
        ({"transform": "nowhere:f"}, ConfigError, "transform: expected 'package.module:function'"),
    ],
)
def test_what_a_run_would_refuse_is_refused(
    here: Path, keys: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check(config(here, **keys))


def test_a_null_label_is_refused_as_in_a_run_unless_its_rows_may_be_left_out(here: Path) -> None:
    day = pq.read_table(here / "raw" / "dt=2" / "a.parquet")
    clicked = pa.array([None if i < 5 else 1 for i in range(day.num_rows)], pa.int64())
    put_parquet(
        here / "raw" / "dt=3" / "a.parquet",
        day.set_column(day.column_names.index("clicked"), "clicked", clicked),
    )
    featstore.extract(featstore.load_spec(SPEC), "raw", "table", partition_from_path=["dt"])
    message = "label 'click' is null in 5 of 900 rows; `{name: click, null: drop}` leaves"
    for where in (None, "dt > '1'"):
        with pytest.raises(MissingValueError, match=r"label 'click' is null in 5 of [96]00 rows"):
            check(config(here, where=where))
        with pytest.raises(MissingValueError, match="label 'click' is null in 5 of"):
            list(FeatureLoader.from_config(config(here, where=where)))
    assert message in str(check(config(here, where="click is not null")))
    for null in ("drop", 0):
        kept = check(config(here, labels=[{"name": "click", "null": null}]))
        assert "is null" not in str(kept)
    assert "is null" not in str(check(config(here, where="dt < '3'")))


def test_it_is_told_where_null_labels_are_looked_for_in_some_files_only(here: Path) -> None:
    assert "looked for" not in str(check(config(here)))
    spec = featstore.load_spec(SPEC | {"output": {"rows_per_file": 30, "rows_per_row_group": 30}})
    featstore.extract(spec, "raw", "many", partition_from_path=["dt"])
    found = check(config(here, table="many"))
    assert (found.num_files, found.num_footers) == (20, 10)
    assert "null labels and weights: looked for in 10 of the files" in str(found)
    assert "looked for" not in str(check(config(here, table="many", labels=[])))


def test_histories_keep_the_end_of_the_spec_and_shared_slots_have_the_same_buckets(
    here: Path,
) -> None:
    spec = {
        **SPEC,
        "slots": [
            *SPEC["slots"][:1],
            SPEC["slots"][1] | {"max_len": 2, "truncate": "tail", "share_slot": 1},
            {"slot": 3, "name": "price", "op": "identity", "of": "cost"},
        ],
    }
    featstore.extract(featstore.load_spec(spec), "raw", "shared", partition_from_path=["dt"])
    tags = {"name": "tags", "buckets": 9, "max_len": 1}
    asked: list[Any] = [{"name": "user", "buckets": 9}, tags, "price"]
    found = check(config(here, table="shared", slots=asked), head=NUM_ROWS)
    last = [{**tags, "keep": "last"}]
    assert found.head is not None
    with FeatureLoader("shared", slots=last, batch_size=NUM_ROWS) as loader:
        assert found.head["tags"] == [row.tolist() for row in next(iter(loader))["tags"]]
    different = config(here, table="shared", slots=[{"name": "user", "buckets": 8}, *asked[1:]])
    message = "'user' and 'tags' share their signs .* found 8 and 9"
    with pytest.raises(ConfigError, match=message):
        check(different)
    with pytest.raises(ConfigError, match=message):
        FeatureLoader.from_config(different)
    with pytest.raises(ConfigError, match=message):
        SampleDataset("shared", slots=[{"name": "user", "buckets": 8}, *asked[1:]])


def test_the_command_prints_tables_and_json(here: Path) -> None:
    url = config(here)
    shown = CliRunner().invoke(cli, ["train", "check", url, "--head", "2"])
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert any(line.startswith("tags slot id jagged int64 ") for line in lines)
    assert "table, version 0: 600 rows in 2 files, 2 splits" in lines
    assert "price 1000 1001" in lines
    told = json.loads(CliRunner().invoke(cli, ["train", "check", url, "--json"]).output)
    assert (told["num_rows"], told["head"], len(told["columns"])) == (600, None, 4)
    other = CliRunner().invoke(cli, ["train", "check", url, "--table", "raw"])
    assert isinstance(other.exception, SelectionError)


def test_a_table_of_plain_parquet_has_no_version(here: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), here / "plain.parquet")
    found = check(config(here, table="plain.parquet", slots=["x"], labels=["y"]), head=5)
    assert (found.version, found.num_rows) == (None, 2)
    assert found.head == {"x": [1.0, 2.0], "y": [0.0, 1.0]}


def test_each_table_of_a_mixture_is_checked(here: Path) -> None:
    tables = [{"table": "table", "where": "dt = '1'", "weight": 3}, {"table": "table"}]
    url = config(here, table=None, tables=tables, stop="all_exhausted")
    found = check_any(url, head=2)
    assert isinstance(found, MixedCheck)
    assert found.shares == (0.75, 0.25)
    assert [table.num_rows for table in found.tables] == [NUM_ROWS, 2 * NUM_ROWS]
    told = CliRunner().invoke(cli, ["train", "check", url], catch_exceptions=False).output
    assert "2 tables, stop all_exhausted" in told
    assert "tables[0], 75.0% of the batches" in told
    as_json = CliRunner().invoke(cli, ["train", "check", url, "--json"], catch_exceptions=False)
    assert [table["num_files"] for table in json.loads(as_json.output)["tables"]] == [1, 2]


def test_a_mixture_whose_columns_differ_does_not_pass_the_check(here: Path) -> None:
    put_parquet(here / "other" / "a.parquet", {"user": [1], "price": [1.0]})
    tables = [{"table": "table"}, {"table": "other"}]
    with pytest.raises(SelectionError, match=r"tables\[1\] \(other\): .*'tags'"):
        check_any(config(here, table=None, tables=tables, labels=[]))


def test_the_shares_of_ranks_are_shown_where_there_are_few_splits(here: Path) -> None:
    text = str(check(config(here)))
    assert (
        "splits of ranks in step: 2 ranks 1, 4 ranks 0 to 1, 8 ranks 0 to 1; 10 for each are "
        "even enough (dispatch.split_rows)"
    ) in text
    assert "splits of ranks" not in str(check(config(here, order="static")))
    assert "splits of ranks" not in str(check(config(here, order={"kind": "rank"})))


def test_the_share_of_the_files_bytes_grows_with_the_selection(here: Path) -> None:
    files_bytes = sum(path.stat().st_size for path in (here / "table").glob("dt=*/*.parquet"))
    few, many = check(config(here, slots=["price"])), check(config(here, slots=["*"]))
    assert few.files_bytes == many.files_bytes == files_bytes
    share = few.stored_bytes_per_row * few.num_rows / files_bytes
    assert f", {share:.0%} of the bytes of the files" in str(few)
    assert few.stored_bytes_per_row < many.stored_bytes_per_row
    assert many.stored_bytes_per_row * many.num_rows < files_bytes
