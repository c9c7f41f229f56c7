"""Fewer negatives, each weighing more: drawn by rows alone, whatever the order and the workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import ConfigError, DataFileError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.request.request import resolve
from featstore.ops import hashing
from featstore.table.open import open_snapshot
from tests.parquet_files import put_parquet

NUM_ROWS = 4000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tenth of the rows are positives; a label in a hundred is unknown."""
    root = tmp_path_factory.mktemp("negatives")
    row = np.arange(NUM_ROWS)
    label = [None if n % 100 == 50 else int(n % 10 == 3) for n in row.tolist()]
    columns = {
        "row": row,
        "click": pa.array(label, pa.int64()),
        "key": [f"k{n}" for n in row.tolist()],
    }
    columns["w"] = pa.array(np.where(row % 2, 0.5, 2.0), pa.float32())
    table = pa.table(columns)
    for number in range(4):
        pq.write_table(table.slice(1000 * number, 1000), root / f"{number}.parquet", 100)
    return str(root)


def drawn(
    url: str,
    rate: Any,
    *,
    null: Any = "drop",
    weight: Any = None,
    seed: int = 7,
    column: Any = None,
    **arguments: Any,
) -> Any:
    negatives = {"label": "click", "rate": rate, "seed": seed, "column": column}
    labels = [{"name": "click", "null": null}]
    loader = FeatureLoader(
        url,
        slots=["row"],
        labels=labels,
        weight=weight,
        negatives=negatives,
        batch_size=64,
        **arguments,
    )
    found: dict[Any, Any] = {}
    for batch in loader:
        assert batch.weight is not None
        rows = zip(
            batch["row"].tolist(),
            batch.labels["click"].tolist(),
            batch.weight.tolist(),
            strict=True,
        )
        found |= {row: (label, weight) for row, label, weight in rows}
    return found, loader.stats()


@pytest.mark.parametrize("column", [None, "key"])
def test_all_positives_and_a_share_of_the_negatives_come_with_their_weights(
    url: str, column: str | None
) -> None:
    found, stats = drawn(url, 0.25, weight="w", column=column)
    positives = {n for n in range(NUM_ROWS) if n % 10 == 3}
    negatives = set(found) - positives
    assert positives <= set(found)
    assert 0.8 < len(negatives) / (3560 * 0.25) < 1.2
    assert stats["negatives_dropped"] == 3560 - len(negatives)
    assert stats["null_labels_dropped"] == 40
    for row, (label, weight) in found.items():
        assert label == float(row in positives)
        assert weight == (0.5 if row % 2 else 2.0) * (1 if row in positives else 4)


def test_without_a_weight_column_there_is_one(url: str) -> None:
    found, _ = drawn(url, 0.5)
    assert dict(found.values()) == {0.0: 2.0, 1.0: 1.0}


@pytest.mark.parametrize("column", [None, "key"])
def test_what_is_drawn_does_not_depend_on_how_it_is_read_and_is_nested(
    url: str, column: str | None
) -> None:
    tenth, half = (set(drawn(url, rate, column=column)[0]) for rate in (0.1, 0.5))
    assert tenth < half
    shuffled: dict[str, Any] = {
        "shuffle": {"window_rows": 300, "interleave": 2},
        "staging": {"mode": "whole"},
    }
    assert set(drawn(url, 0.1, column=column, **shuffled)[0]) == tenth
    assert set(drawn(url, 0.1, column=column, where="row >= 500")[0]) == {
        row for row in tenth if row >= 500
    }
    assert set(drawn(url, 0.1, column=column, seed=8)[0]) != tenth
    assert len(drawn(url, 1, column=column)[0]) == NUM_ROWS - 40


def test_a_column_draws_as_sample_does(url: str) -> None:
    found, _ = drawn(url, 0.3, column="key", seed=-5)
    sampled = FeatureLoader(url, slots=["row"], where="sample(key, 0.3, -5)")
    expected = {row for batch in sampled for row in batch["row"].tolist()}
    assert {row for row, (label, _) in found.items() if label == 0} == {
        row for row in expected if row % 10 != 3 and row % 100 != 50
    }


def test_places_are_a_contract(url: str) -> None:
    """The hash of a row without a column: of seed, path of the data file, number of the row in
    it.
    """
    found, _ = drawn(url, 0.5, null=0.0)
    paths = hashing.value_hash(pa.array(["2.parquet"] * 1000))
    signs = np.asarray(hashing.sign(7, paths, hashing.value_hash(pa.array(range(1000)))))
    kept = {2000 + n for n in np.flatnonzero(signs < 2**62).tolist()}
    assert {row for row in found if 2000 <= row < 3000} == kept | {
        row for row in range(2000, 3000) if row % 10 == 3
    }


def test_a_missing_row_id_is_told_of(tmp_path: Path) -> None:
    put_parquet(tmp_path / "a.parquet", {"click": [0, 1], "key": ["a", None]})
    with pytest.raises(
        DataFileError,
        match=r"a\.parquet: negatives\.column 'key' is missing in 1 of 2 rows: leave the option out",
    ):
        list(
            FeatureLoader(
                tmp_path,
                slots=["click"],
                labels=["click"],
                negatives={"label": "click", "rate": 0.5, "column": "key"},
            )
        )


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        (
            {"label": "clik", "rate": 0.5},
            r"negatives\.label: expected one of labels, found 'clik'; did you mean 'click'",
        ),
        (
            {"label": "click", "rate": 0},
            r"negatives\.rate: expected a number above 0 and up to 1, found 0",
        ),
        ({"label": "click", "rate": True}, r"negatives\.rate"),
        ({"label": "click", "rate": 0.5, "seed": 2**31}, r"negatives\.seed: expected an int32"),
        (
            {"label": "click", "rate": 0.5, "column": "w"},
            r"negatives\.column: 'w': expected a scalar column .* found float",
        ),
        ({"label": "click", "rat": 0.5}, r"negatives: unknown key 'rat'; did you mean 'rate'"),
    ],
)
def test_negatives_that_cannot_be_drawn_are_refused(url: str, negatives: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureLoader(url, slots=["row"], labels=["click"], negatives=negatives)


def test_negatives_are_part_of_what_a_state_is_of(url: str) -> None:
    schema = open_snapshot(url).schema
    plain = resolve(schema, slots=["row"], labels=["click"])
    loaders = [
        FeatureLoader(url, slots=["row"], labels=["click"], negatives=n)
        for n in (None, {"label": "click", "rate": 0.5})
    ]
    requests = [loader.state_dict()["request"] for loader in loaders]
    assert requests[0] == plain.digest != requests[1]
    with pytest.raises(TypeError, match="left out"):
        len(
            FeatureLoader(
                url,
                slots=["row"],
                labels=["click"],
                order="static",
                negatives={"label": "click", "rate": 0.5},
            )
        )
