"""The first pass: what is fitted, frozen and found again, in threads and on Spark."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from featstore import api
from featstore.base.errors import InputError, NotFittedError, SpecError
from featstore.explore.table import open_table
from featstore.extraction.fit import fit_spec
from featstore.extraction.spark.runners import SparkRunner
from featstore.extraction.units.extractor import Extractor
from featstore.spec.diff import diff
from featstore.spec.lint import lint
from featstore.spec.lock import load_lock
from featstore.spec.meaning import make_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.show import show
from tests.parquet_files import put_parquet

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"price": "double", "city": "string", "tags": "list<string>"},
    "slots": [
        {"name": "scaled", "op": "standardize", "of": "price", "default": 0, "store": False},
        {
            "slot": 1,
            "name": "price_bucket",
            "op": "quantile_bucketize",
            "of": "scaled",
            "num_buckets": 4,
            "encode": "index",
        },
        {"slot": 2, "name": "price_share", "op": "min_max", "of": "price"},
        {
            "slot": 3,
            "name": "city_index",
            "op": "vocabulary",
            "of": "city",
            "file": "cities.txt",
            "encode": "index",
        },
        {
            "slot": 4,
            "name": "tag_ids",
            "op": "vocabulary",
            "of": "tags",
            "file": "cities.txt",
            "unknown": "index",
        },
        {"slot": 5, "name": "price_scaled", "op": "identity", "of": "scaled"},
    ],
    "output": {"rows_per_row_group": 100, "rows_per_file": 250},
}


@pytest.fixture
def raw(tmp_path: Path) -> str:
    """1,000 rows in two files of several row groups; prices 0 to 998, every tenth missing."""
    for part in range(2):
        rows = range(part * 500, part * 500 + 500)
        put_parquet(
            tmp_path / "raw" / f"{part}.parquet",
            {
                "price": pa.array([None if row % 10 == 9 else float(row) for row in rows]),
                "city": pa.array([["rome", "oslo", "lima"][row % 3] for row in rows]),
                "tags": pa.array(
                    [["rome", "lima"][: row % 3] for row in rows], pa.list_(pa.string())
                ),
            },
            row_group_size=70,
        )
    return str(tmp_path / "raw")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "cities.txt").write_text("rome\noslo\n")
    return write(tmp_path / "spec.yaml")


def write(path: Path, slots: list[dict[str, Any]] | None = None) -> Path:
    path.write_text(yaml.safe_dump(DOCUMENT | {"slots": slots or DOCUMENT["slots"]}))
    return path


def test_an_unfitted_spec_says_how_to_fit_it(path: Path) -> None:
    with pytest.raises(
        NotFittedError,
        match=r"slots\[0\]: standardize \('scaled'\) is not fitted: run `featstore spec fit",
    ):
        Extractor(load_spec(path))
    findings = lint(str(path)).findings
    assert any("'price_share') is not fitted" in finding for finding in findings)
    assert any(
        r"expected 'cities.txt' recorded in the lock, found it not" in finding
        for finding in findings
    )


def test_fitted_nodes_are_frozen_in_the_lock_level_by_level(path: Path, raw: str) -> None:
    text = api.fit(path, raw)
    assert "price_share: min=0.0, max=998.0 (min_max of 900 values)" in text
    spec = load_spec(path)
    prices = np.array([row for row in range(1000) if row % 10 != 9] + [0] * 100, np.float64)
    scaled = spec.fitted["scaled"].params
    assert scaled["mean"] == pytest.approx(prices.mean(), rel=1e-15)
    assert scaled["stddev"] == pytest.approx(prices.std(), rel=1e-13)
    ordered = np.sort((prices - scaled["mean"]) / scaled["stddev"])
    assert spec.fitted["price_bucket"].params["boundaries"] == [ordered[i * 250] for i in (1, 2, 3)]
    assert lint(str(path)).ok


def test_an_extractor_gives_the_fitted_values_for_batches_and_single_rows(
    path: Path, raw: str
) -> None:
    api.fit(path, raw)
    extractor = Extractor(load_spec(path))
    row = Extractor(load_spec(path)).one({"price": 998.0, "city": "oslo", "tags": ["rome", "x"]})
    assert (row["price_bucket"], row["price_share"], row["city_index"]) == (4, 1.0, 2)
    assert extractor.schema["city_index"].num_indices == 3
    assert extractor.schema["price_bucket"].num_indices == 5
    assert extractor.one({"price": 0.0, "city": "lima", "tags": None})["city_index"] == 0
    assert extractor.counts == {"city_index: not in vocabulary": 1}


def test_threads_and_cuts_change_nothing(path: Path, raw: str) -> None:
    spec = replace(load_spec(path), nodes=load_spec(path).nodes[:3])
    whole = fit_spec(spec, raw)
    cut = fit_spec(
        replace(spec, output=replace(spec.output, rows_per_row_group=10, rows_per_file=70)), raw
    )
    assert cut.fitted == whole.fitted
    assert whole.hash != spec.hash


def test_spark_fits_and_extracts_the_same(path: Path, raw: str, spark: Any, tmp_path: Path) -> None:
    api.fit(path, raw)
    spec = load_spec(path)
    again = fit_spec(spec, raw, SparkRunner(spark).fit, again=True)
    assert again.fitted == spec.fitted
    api.extract(spec, raw, tmp_path / "local")
    (tmp_path / "cities.txt").unlink()  # the vocabulary travels with the task
    api.extract(spec, raw, tmp_path / "spark", spark=spark)
    local, remote = (open_table(tmp_path / name).to_arrow() for name in ("local", "spark"))
    assert local.equals(remote)


def test_a_change_below_a_fit_makes_it_stale_and_another_name_does_not(
    path: Path, raw: str
) -> None:
    api.fit(path, raw)
    first, *rest = DOCUMENT["slots"]
    write(path, [first | {"default": 1}, *rest])
    with pytest.raises(
        NotFittedError,
        match=r"slots\[0\]: standardize \('scaled'\) was changed, or what it reads was, after it was fitted",
    ):
        Extractor(load_spec(path))
    assert "was changed, or what it reads was, after it was fitted" in lint(str(path)).findings[0]
    write(
        path,
        [*DOCUMENT["slots"][:2], DOCUMENT["slots"][2] | {"name": "share"}, *DOCUMENT["slots"][3:]],
    )
    assert not lint(str(path)).ok
    assert lint(str(path), update_lock=True).ok
    assert load_spec(path).fitted["share"].params == {"min": 0.0, "max": 998.0}


def test_a_second_fit_keeps_what_is_fitted_unless_told_otherwise(
    path: Path, raw: str, tmp_path: Path
) -> None:
    api.fit(path, raw)
    before = load_spec(path)
    pq.write_table(
        pa.table({"price": [5.0, 7.0], "city": ["a", "b"], "tags": [["a"], []]}),
        tmp_path / "other.parquet",
    )
    assert " values)" not in api.fit(path, tmp_path / "other.parquet")
    assert load_spec(path).hash == before.hash
    api.fit(path, tmp_path / "other.parquet", again=True)
    after = load_spec(path)
    assert after.fitted["price_share"].params == {"min": 5.0, "max": 7.0}
    assert after.hash != before.hash
    found = lint(str(path)).findings
    assert any(
        "slot 2 ('price_share') has another meaning than when it was locked" in finding
        for finding in found
    )
    assert not any("slot 3" in finding for finding in found)


def test_a_grown_vocabulary_is_used_once_it_is_recorded(
    path: Path, raw: str, tmp_path: Path
) -> None:
    api.fit(path, raw)
    before = load_spec(path)
    api.extract(before, raw, tmp_path / "table", partition={"day": "1"})
    with (tmp_path / "cities.txt").open("a") as file:
        file.write("lima\n")
    assert load_spec(path).hash == before.hash
    assert (
        "cities.txt has 1 values more than the 2 that are recorded" in lint(str(path)).findings[0]
    )
    assert lint(str(path), update_lock=True).ok
    after = load_spec(path)
    assert after.hash != before.hash
    assert Extractor(after).one({"price": 0.0, "city": "lima", "tags": []})["city_index"] == 3
    assert make_lock(after).slots == make_lock(before).slots
    api.extract(after, raw, tmp_path / "table", partition={"day": "2"})
    api.extract(before, raw, tmp_path / "table", partition={"day": "3"})
    table = open_table(tmp_path / "table")
    assert table.schema["city_index"].num_indices == 4
    assert table.num_rows == 3000


def test_diff_and_show_know_of_what_is_frozen(path: Path, raw: str, tmp_path: Path) -> None:
    api.fit(path, raw)
    assert "min=0.0, max=998.0" in str(show(str(path)))
    assert "num_values=2" in str(show(str(path)))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "cities.txt").write_text("rome\noslo\nlima\n")
    other = write(tmp_path / "more" / "spec.yaml")
    pq.write_table(
        pa.table({"price": [5.0, 7.0], "city": ["a", "b"], "tags": [["a"], []]}),
        tmp_path / "other.parquet",
    )
    api.fit(other, tmp_path / "other.parquet")
    lines = [" ".join(line.split()) for line in str(diff(str(path), str(other))).splitlines()]
    assert lines == [
        "changed 1 price_bucket",
        "changed 2 price_share",
        "changed 5 price_scaled",
        "vocabulary cities.txt: 2 values, now 3",
    ]


def test_a_document_takes_its_lock_as_an_argument(
    path: Path, raw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.fit(path, raw)
    monkeypatch.chdir(path.parent)
    spec = load_spec(DOCUMENT, lock=load_lock("spec.lock.json"))
    assert spec.hash == load_spec(path).hash
    assert pickle.loads(pickle.dumps(spec)).hash == spec.hash


def test_what_cannot_be_fitted_is_named(path: Path, raw: str, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"price": [5.0, 5.0], "city": ["a", "b"], "tags": [["a"], []]}),
        tmp_path / "same.parquet",
    )
    with pytest.raises(
        InputError,
        match=r"slots\[0\]: standardize \('scaled'\) cannot be fitted on .*: expected values",
    ) as raised:
        api.fit(path, tmp_path / "same.parquet")
    assert all(
        f"('{name}') cannot be fitted" in str(raised.value) for name in ("scaled", "price_share")
    )
    assert str(raised.value).startswith(f"{path}: ")
    assert "or remove the slots of columns that are constant" in str(raised.value)
    pq.write_table(pa.table({"price": pa.array([], pa.float64())}), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="holds no rows to fit scaled, price_share on"):
        api.fit(path, tmp_path / "empty.parquet")
    assert load_lock(str(path.with_name("spec.lock.json"))) is None
    write(path, [{"slot": 1, "name": "x", "op": "min_max", "of": "tags"}])
    with pytest.raises(
        SpecError, match=r"slots\[0\]\.of: expected double, long or boolean for min_max"
    ):
        api.fit(path, raw)


def node(**options: Any) -> Spec:
    return load_spec(DOCUMENT | {"slots": [{"slot": 1, "name": "x", **options}]})


@pytest.mark.parametrize("num_buckets", [1, 65_537, True, 2.5])
def test_a_number_of_buckets_is_a_whole_number_of_at_least_two(num_buckets: Any, raw: str) -> None:
    with pytest.raises(SpecError, match="num_buckets: expected an integer, 2 to 65536"):
        fit_spec(node(op="quantile_bucketize", of="price", num_buckets=num_buckets), raw)


def test_a_lock_that_people_changed_is_refused(path: Path, raw: str) -> None:
    api.fit(path, raw)
    lock = path.with_name("spec.lock.json")
    lock.write_text(lock.read_text().replace('"max": 998.0', '"max": "x"'))
    with pytest.raises(
        SpecError, match=r"lock: fitted\.price_share: expected what `featstore spec fit` writes"
    ):
        Extractor(load_spec(path))


def test_a_spec_with_nothing_to_fit_is_told_so(path: Path, raw: str) -> None:
    path.write_text(
        json.dumps(
            {
                "spec": 1,
                "inputs": {"price": "double"},
                "slots": [{"slot": 1, "name": "a", "op": "log1p", "of": "price"}],
            }
        )
    )
    assert "no operator of the spec is fitted on data" in api.fit(path, raw)
