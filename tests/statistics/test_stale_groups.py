"""Where a slot group is stale, after another engine has rewritten base files or a run of ours has,
and where it is only not there.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import featstore
from featstore import api
from featstore.base.errors import ConfigError, StaleGroupError
from featstore.extraction.deletion import delete_rows
from featstore.statistics.stale_groups import reading, require_fresh, stale_groups
from featstore.table.open import open_snapshot
from tests.stale_tables import DAYS, REWRITES, N, X, Y, add, make, rewrite, spec_of, write_raw


@pytest.fixture
def url(tmp_path: Path) -> str:
    return make(tmp_path)


def found(url: str, *names: str, day: str | None = None) -> dict[str, tuple[list[str], int]]:
    """The columns and rows that are stale, by group."""
    snapshot = open_snapshot(url)
    files = snapshot.data_files if day is None else snapshot.in_partitions([{"day": day}])
    return {
        stale.name: (list(stale.columns), sum(file.num_rows for file in stale.files))
        for stale in stale_groups(snapshot, files, names or snapshot.schema.to_arrow().names)
    }


@pytest.mark.parametrize(
    ("how", "num_rows"), [("delete", 19), ("update", 20), ("optimize", 100), ("z-order", 100)]
)
def test_a_group_is_stale_beside_the_files_that_another_engine_has_rewritten(
    url: str, how: str, num_rows: int
) -> None:
    assert found(url) == {}
    rewrite(url, how)
    assert found(url) == {"more": (["x"], num_rows)}
    assert found(url, "n", "id", "click") == {}
    assert set(found(url, day="2")) == ({"more"} if num_rows == 100 else set())


def test_files_and_partitions_that_never_had_the_group_are_not_stale(
    url: str, tmp_path: Path
) -> None:
    rows = {"n": [300], "id": [300], "click": [0]}
    columns = {name: pa.array(values, pa.int64()) for name, values in rows.items()}
    for day in ("1", "3"):
        table = pa.table(columns | {"day": pa.array([day])})
        write_deltalake(url, table, mode="append")
    assert found(url) == {}
    DeltaTable(url).delete("day = '1'")
    assert open_snapshot(url).groups[0].stale
    assert found(url) == {}


def test_files_into_which_a_group_was_folded_hold_its_columns(url: str) -> None:
    delete_rows(url, "n = 101")
    snapshot = open_snapshot(url)
    assert len(snapshot.groups[0].stale) == 3
    assert found(url) == {}
    rewrite(url, "optimize")
    assert found(url) == {"more": (["x"], 50)}, "day 2 has nulls, since x is in the base's schema"
    assert found(url, day="1") == {}


def test_a_day_that_was_extracted_again_has_the_slots_of_its_spec(url: str, tmp_path: Path) -> None:
    day = tmp_path / "raw" / "day=1"
    featstore.extract(spec_of(N, Y), day, url, partition={"day": "1"})
    assert found(url) == {"more": (["x"], 50)}
    featstore.extract(spec_of(N, X), day, url, partition={"day": "1"})
    assert found(url) == {}


def test_a_slot_that_the_group_did_not_have_in_a_partition_is_not_stale_there(
    url: str, tmp_path: Path
) -> None:
    add(tmp_path, N, X, Y, day="2", key="id")
    rewrite(url, "delete")
    assert found(url) == {"more": (["x"], 19)}
    assert found(url, "y") == {}


@pytest.mark.parametrize("how", REWRITES)
def test_labels_that_were_rewritten_are_stale_although_the_base_has_older_ones(
    tmp_path: Path, how: str
) -> None:
    url, ripe = make(tmp_path), write_raw(tmp_path / "ripe", 1)
    api.relabel(spec_of(N), ripe, url, key="id", partition_from_path=["day"])
    assert set(featstore.open_table(url).to_arrow()["click"].to_pylist()) == {1}
    rewrite(url, how)
    assert found(url, "click")["labels"][0] == ["click"]
    with pytest.raises(StaleGroupError, match="`featstore table relabel --spec SPEC"):
        featstore.open_table(url).to_arrow(slots=["n"])
    api.relabel(spec_of(N), ripe, url, key="id", partition_from_path=["day"])
    assert found(url, "click") == {}


def test_labels_of_a_day_that_was_extracted_again_are_those_of_the_day(tmp_path: Path) -> None:
    url, ripe = make(tmp_path), write_raw(tmp_path / "ripe", 1)
    api.relabel(spec_of(N), ripe, url, key="id", partition_from_path=["day"])
    featstore.extract(spec_of(N, X), ripe, url, partition_from_path=["day"])
    assert open_snapshot(url).groups[0].stale
    assert found(url) == {}


def test_a_group_whose_files_were_vacuumed_is_stale_all_the_same(url: str) -> None:
    rewrite(url, "optimize")
    for path in (Path(url) / "_groups" / "more").rglob("part-*.parquet"):
        path.unlink()
    assert found(url) == {"more": (["x"], 100)}


def test_the_error_names_group_files_rows_and_the_command(url: str) -> None:
    rewrite(url, "delete")
    snapshot = open_snapshot(url)
    (path,) = (file.path for file in snapshot.data_files if not file.groups)
    with pytest.raises(StaleGroupError) as caught:
        require_fresh(snapshot, snapshot.data_files, ["n", "x"])
    assert str(caught.value) == (
        f"{url}: slot group 'more' is stale beside 1 of the data files, with 19 rows ({path}), so x "
        "would be missing there: the base files that its files belong to were replaced. Write it "
        f"again with `featstore extract --spec SPEC --input RAW --table {url} --partition day=1 "
        "--group more --key COLUMN`, where COLUMN is a kept column that is different in every row, "
        "or extract these partitions again as a whole; or read them as missing (`stale_groups: "
        "missing`, `--stale-groups missing`)"
    )


def test_the_error_names_some_of_many_files(url: str, tmp_path: Path) -> None:
    featstore.extract(spec_of(N), write_raw(tmp_path / "new", 1), url, partition_from_path=["day"])
    snapshot = open_snapshot(url)
    assert len(snapshot.data_files) == 3 * len(DAYS)
    with pytest.raises(
        StaleGroupError,
        match=r"beside 6 of the data files, with 100 rows .* and 3 more.*"
        "--partition-from-path day --group more",
    ):
        require_fresh(snapshot, snapshot.data_files, ["x"])


def test_an_unknown_value_of_the_option_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="stale_groups: expected error or missing, found 'skip'"):
        reading(open_snapshot(url), "skip")


def test_what_was_opened_to_read_missing_values_stays_so(url: str) -> None:
    snapshot = reading(reading(open_snapshot(url), "missing"), "error")
    rewrite(url, "delete")
    require_fresh(snapshot, open_snapshot(url).data_files, ["x"])
    assert snapshot.reads_stale
