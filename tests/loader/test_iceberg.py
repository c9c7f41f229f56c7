"""A loader, samples and a growing plan over an Iceberg table."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import featstore
from featstore.base.errors import AccessError, ConfigError, InputError
from tests.iceberg_tables import COLUMNS, catalog_at, partitioned, rows_of

pytest.importorskip("pyiceberg")
URL = "iceberg://test/db.t"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with catalog_at(tmp_path, monkeypatch) as catalog:
        yield catalog


def by_day(catalog: Any) -> Any:
    from pyiceberg.transforms import IdentityTransform

    return partitioned(catalog, day=IdentityTransform())


def ids(url: str = URL, **options: Any) -> list[int]:
    with featstore.FeatureLoader(url, slots=["id"], batch_size=7, **options) as loader:
        return [row for batch in loader for row in batch["id"].tolist()]


def test_a_loader_delivers_each_row_with_renamed_and_added_columns(
    catalog: Any, tmp_path: Path
) -> None:
    from pyiceberg.types import LongType

    table = by_day(catalog)
    table.append(rows_of(1, 40))
    with table.update_schema() as update:
        update.rename_column("x", "price")
        update.add_column("late", LongType())
    table.append(late_rows(table))
    for staging in (None, {"directory": str(tmp_path / "cache"), "mode": "ranges"}):
        with featstore.FeatureLoader(
            URL,
            slots=["id", "ids", "late", "price"],
            extras=["name", "day"],
            batch_size=7,
            staging=staging,
        ) as loader:
            late = {
                i: v
                for b in loader
                for i, v in zip(b["id"].tolist(), b["late"].tolist(), strict=True)
            }
        assert late == {**dict.fromkeys(range(1, 41), 0), **dict.fromkeys(range(41, 49), 3)}


def late_rows(table: Any) -> pa.Table:
    schema = table.schema().as_arrow()
    plain = rows_of(41, 8).rename_columns(
        ["price" if name == "x" else name for name in COLUMNS.names]
    )
    plain = plain.append_column("late", pa.array([3] * 8, pa.int64()))
    return plain.select(schema.names).cast(pa.schema([f.remove_metadata() for f in schema]))


def test_where_over_a_partition_key_and_a_column(catalog: Any) -> None:
    by_day(catalog).append(rows_of(1, 40))
    assert sorted(ids(where="day >= '2020-01-09'")) == list(range(32, 41))
    assert sorted(ids(where="day >= '2020-01-09' and id < 35")) == [32, 33, 34]
    assert sorted(ids(order="static", where="n = 3")) == [6]


def test_samples_by_index(catalog: Any, tmp_path: Path) -> None:
    by_day(catalog).append(rows_of(1, 40))
    staging = {"directory": str(tmp_path / "cache")}
    with featstore.SampleDataset(
        URL, slots=["id"], labels=[{"name": "y", "null": 0}], staging=staging
    ) as samples:
        assert len(samples) == 40
        assert sorted(samples[list(range(40))]["id"].tolist()) == list(range(1, 41))


def test_new_partitions_are_followed_and_a_state_is_restored(catalog: Any) -> None:
    table = by_day(catalog)
    table.append(rows_of(0, 8))
    follow = {"every_s": 0.02, "until": "day >= '2020-01-05'"}
    options: dict[str, Any] = {"slots": ["id"], "batch_size": 4, "follow": follow}
    rows = []
    with featstore.FeatureLoader(URL, **options) as loader:
        for number, batch in enumerate(loader):
            rows += batch["id"].tolist()
            if number == 1:
                table.append(rows_of(8, 4))
            if number == 2:
                state = loader.state_dict()
                table.append(rows_of(12, 8))
    assert sorted(rows) == list(range(20))
    with featstore.FeatureLoader(URL, **options) as loader:
        loader.load_state_dict(state)
        rest = [row for batch in loader for row in batch["id"].tolist()]
    assert sorted(rest) == list(range(8, 20))


def renamed_by_day(catalog: Any) -> Any:
    """A table with rows, whose partition key was renamed since."""
    table = by_day(catalog)
    table.append(rows_of(4, 40))
    with table.update_schema() as update:
        update.rename_column("day", "d")
    return table


def append(table: Any, first: int) -> None:
    names = [field.name for field in table.schema().fields]
    table.append(rows_of(first, 8).rename_columns(names))


@pytest.mark.parametrize("version", ["", "?version=audit"])
def test_files_listed_again_have_the_names_with_which_the_table_was_opened(
    version: str, catalog: Any
) -> None:
    table = renamed_by_day(catalog)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    with featstore.FeatureLoader(
        f"{URL}{version}",
        slots=["id"],
        extras=["d"],
        where="d >= '2020-01-03' and id < 20",
        batch_size=7,
        order={"kind": "rank", "mini_epochs": 2},
    ) as loader:
        append(table, 100)  # the snapshot that was opened is no longer the current one
        with table.update_schema() as update:
            update.rename_column("d", "date")
        found = [
            row
            for batch in loader
            for row in zip(batch["id"].tolist(), batch.extras["d"].to_pylist(), strict=True)
        ]
    assert sorted(found) == [(i, date(2020, 1, 1 + i // 4)) for i in range(8, 20)]


def test_a_followed_table_keeps_its_names_and_its_state_after_renames(catalog: Any) -> None:
    table = renamed_by_day(catalog)
    options: dict[str, Any] = {
        "slots": ["id"],
        "batch_size": 40,
        "follow": {"every_s": 0.02, "until": "d >= '2020-01-15'"},
    }
    with featstore.FeatureLoader(URL, **options) as loader:
        rows = next(iter(loader))["id"].tolist()
        loader.ack()
        state = loader.state_dict()
    assert sorted(rows) == list(range(4, 44))
    append(table, 44)
    with featstore.FeatureLoader(URL, **options) as loader:
        loader.load_state_dict(state)
        with table.update_schema() as update:
            update.rename_column("d", "date")
        append(table, 52)
        rest = [row for batch in loader for row in batch["id"].tolist()]
    assert sorted(rest) == list(range(44, 60))


def fail_looks(patch: pytest.MonkeyPatch, num_failures: int, status: str) -> None:
    """Has the catalog's server answer so often with an error that pyiceberg has for a status."""
    from pyiceberg import exceptions
    from pyiceberg.catalog.sql import SqlCatalog

    load, failures = SqlCatalog.load_table, iter(range(num_failures))

    def fail_first(self: Any, name: str) -> Any:
        if next(failures, None) is not None:
            raise getattr(exceptions, status)("busy")
        return load(self, name)

    patch.setattr(SqlCatalog, "load_table", fail_first)


def test_a_catalog_that_fails_for_a_while_does_not_end_following(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = by_day(catalog)
    table.append(rows_of(0, 8))
    follow = {"every_s": 0.02, "until": "day >= '2020-01-03'"}
    with featstore.FeatureLoader(URL, slots=["id"], batch_size=8, follow=follow) as loader:
        batches = iter(loader)
        assert sorted(next(batches)["id"].tolist()) == list(range(8))
        table.append(rows_of(8, 8))
        fail_looks(monkeypatch, 6, "ServiceUnavailableError")  # one more than one look's attempts
        assert sorted(row for batch in batches for row in batch["id"].tolist()) == [*range(8, 16)]
    assert "the store is in trouble" in caplog.text
    assert "it is looked at again" in caplog.text


def test_a_catalog_that_refuses_ends_following(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = by_day(catalog)
    table.append(rows_of(0, 8))
    with featstore.FeatureLoader(
        URL, slots=["id"], batch_size=8, follow={"every_s": 0.02}
    ) as loader:
        batches = iter(loader)
        next(batches)
        fail_looks(monkeypatch, 1_000, "ForbiddenError")
        with pytest.raises(AccessError, match="refuses access; check the catalog's credentials"):
            next(batches)


def test_new_files_are_followed_in_a_table_without_partition_keys(catalog: Any) -> None:
    from pyiceberg.transforms import DayTransform

    table = partitioned(catalog, at=DayTransform())
    table.append(rows_of(0, 8))
    rows = []
    with featstore.FeatureLoader(
        URL, slots=["id"], batch_size=8, follow={"every_s": 0.02}
    ) as loader:
        for batch in loader:
            rows += batch["id"].tolist()
            if len(rows) == 8:
                table.append(rows_of(8, 8))
            if len(rows) == 16:
                loader.close()
    assert sorted(rows) == list(range(16))


def test_workers_of_a_data_loader_read_it_together(catalog: Any) -> None:
    by_day(catalog).append(rows_of(1, 40))
    with featstore.FeatureLoader(URL, slots=["id"], batch_size=7) as loader:
        workers = DataLoader(loader, batch_size=None, num_workers=2)
        assert sorted(row for batch in workers for row in batch["id"].tolist()) == [*range(1, 41)]


def test_a_metadata_file_is_not_followed(catalog: Any) -> None:
    table = by_day(catalog)
    table.append(rows_of(0, 8))
    url = f"iceberg+{table.metadata_location}"
    assert sorted(ids(url)) == list(range(8))
    with pytest.raises(ConfigError, match=r"follow: expected .* a metadata file, which never"):
        featstore.FeatureLoader(url, slots=["id"], follow=True)


def test_views_that_find_columns_by_name_are_refused(catalog: Any) -> None:
    by_day(catalog)
    table = featstore.open_table(URL)
    for view in (table.duckdb, table.polars):
        with pytest.raises(
            InputError, match="found columns that files hold under other names or by ids"
        ):
            view()
