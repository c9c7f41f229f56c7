"""KeyedJaggedTensors: the packing without torchrec, and a real one where torchrec is installed."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from featstore.base.errors import MissingDependencyError
from featstore.extraction.units.extractor import Extractor
from featstore.loader.feature_loader import FeatureLoader
from featstore.spec.parse import load_spec
from featstore.tensors.batch import join_bags
from tests.frameworks_environment import PYTHON, ROOT, needs_frameworks, variables
from tests.parquet_files import put_parquet


@pytest.fixture
def batch(table_url: str) -> Any:
    slots: list[Any] = ["row", "half", {"name": "tags", "buckets": 9}, "pair"]
    return next(iter(FeatureLoader(table_url, slots=slots, batch_size=5)))


@pytest.fixture
def torchrec() -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            import torchrec.sparse.jagged_tensor as module
    except (ImportError, OSError) as error:
        pytest.skip(f"torchrec cannot be loaded: {error}")
    return module


def test_bags_are_joined_slot_by_slot(batch: Any) -> None:
    values, lengths = join_bags([batch._bag(name) for name in ("row", "tags", "pair")])
    assert lengths.tolist() == [1] * 5 + [0, 1, 2, 1, 4] + [2] * 5
    assert values.tolist() == [
        0,
        1,
        2,
        3,
        4,
        2,
        2,
        3,
        0,
        2,
        3,
        4,
        5,
        0,
        0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        4,
        -4,
    ]
    assert (values.dtype, lengths.dtype) == (torch.int64, torch.int64)


def test_bags_of_int32_stay_so_and_become_int64_beside_others() -> None:
    narrow, wide = (
        (torch.tensor([1], dtype=torch.int32), torch.tensor([1])),
        (torch.tensor([2]), torch.tensor([1])),
    )
    assert join_bags([narrow, narrow])[0].dtype == torch.int32
    assert join_bags([narrow, wide])[0].dtype == torch.int64
    assert join_bags([(narrow[0].to("meta"), narrow[1].to("meta"))])[0].device.type == "meta"


@pytest.mark.parametrize(
    ("slots", "error", "message"),
    [
        (["half"], TypeError, "'half' holds floats, expected ids"),
        ("row", TypeError, "expected a list of slots, found 'row'"),
        ([], ValueError, "expected at least one id slot, found none"),
        (["rows"], KeyError, "did you mean 'row'"),
    ],
)
def test_what_is_no_id_slot_is_refused(batch: Any, slots: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        batch.to_kjt(slots)


@pytest.fixture
def weighted(tmp_path: Path) -> Any:
    ids, floats = pa.list_(pa.int64()), pa.list_(pa.float32())
    put_parquet(
        tmp_path / "a.parquet",
        {
            "item": pa.array([[1, 2], [], [3]], ids),
            "count": pa.array([[0.5, None], [], [2.0]], floats),
            "price": pa.array([[0.5, 1.5], [], [2.0]], floats),
            "age": pa.array([[1.0, 2.0], [], None], floats),
            "user": [7, 8, 9],
            "rate": pa.array([1.0, 0.25, None], pa.float32()),
        },
    )
    slots: list[Any] = ["item", "count", "age", "user", "rate"]
    slots.append({"name": "price", "dtype": "bfloat16"})
    return next(iter(FeatureLoader(tmp_path, slots=slots)))


def test_weights_of_ids_are_joined_as_the_ids_are(weighted: Any) -> None:
    names = ["user", "item"]
    bags = [weighted._bag(name) for name in names]
    found = weighted._weights_of(names, bags, {"item": "price"})
    assert (found.dtype, found.tolist()) == (torch.float32, [1.0, 1.0, 1.0, 0.5, 1.5, 2.0])
    found = weighted._weights_of(names, bags, {"item": "price", "user": "rate"})
    assert found.nan_to_num(-1).tolist() == [1.0, 0.25, -1.0, 0.5, 1.5, 2.0]


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"item": "user"}, TypeError, "expected a float slot, found ids in 'user'"),
        ({"items": "price"}, ValueError, "weights of 'items': expected one of the id slots"),
        ({"item": "prize"}, KeyError, "did you mean 'price'"),
        ({"item": "rate"}, ValueError, "found 1 for 2 ids in row 0 of the batch"),
        ({"item": "count"}, ValueError, "found 1 for 2 ids in row 0 of the batch"),
        ({"user": "price"}, ValueError, "found 2 for 1 ids in row 0 of the batch"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    weighted: Any, weights: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        weighted.to_kjt(["item", "user"], weights=weights)


def test_a_missing_weight_is_nan(weighted: Any) -> None:
    names, bags = ["item"], [weighted._bag("item")]
    found = weighted._weights_of(names, bags, {"item": "age"})
    assert found.nan_to_num(-1).tolist() == [1.0, 2.0, -1.0]


def test_without_torchrec_it_says_what_is_needed(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchrec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(
        MissingDependencyError,
        match=r"needs torchrec, and with it the release of fbgemm-gpu.* made for torch 2",
    ):
        batch.to_kjt()


def test_a_real_one_has_the_rows_of_each_slot(torchrec: Any, batch: Any) -> None:
    kjt = batch.to_kjt()
    assert isinstance(kjt, torchrec.KeyedJaggedTensor)
    assert (kjt.keys(), kjt.stride()) == (["row", "tags", "pair"], 5)
    for name in ("row", "tags", "pair"):
        assert [row.tolist() for row in kjt[name].to_dense()] == [
            row.reshape(-1).tolist() for row in batch[name]
        ]


def test_a_real_one_has_the_weights_of_its_ids(torchrec: Any, weighted: Any) -> None:
    kjt = weighted.to_kjt(["user", "item"], weights={"item": "price"})
    assert kjt["user"].weights().tolist() == [1.0, 1.0, 1.0]
    assert kjt["item"].weights().tolist() == [0.5, 1.5, 2.0]
    assert weighted.to_kjt(["item"]).weights_or_none() is None


def test_a_real_one_goes_through_a_table_that_slots_share(torchrec: Any, tmp_path: Path) -> None:
    """Equal items have one row of the table, in the slot of the item and in that of the clicks."""
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"item": "string", "clicks": "list<string>", "weights": "list<double>"},
            "sequences": {"events": {"of": ["clicks", "weights"]}},
            "slots": [
                {"slot": 1, "name": "item", "op": "hash", "of": "item"},
                {"slot": 2, "name": "clicked", "op": "hash", "of": "clicks", "share_slot": 1},
                {"slot": 3, "name": "weight", "op": "identity", "of": "weights"},
            ],
        }
    )
    rows = {
        "item": ["a", "b", "c"],
        "clicks": [["b", "a"], [], ["c"]],
        "weights": [[0.5, 2.0], [], [3.0]],
    }
    stored = Extractor(spec)(pa.RecordBatch.from_pydict(rows))
    put_parquet(tmp_path / "a.parquet", pa.Table.from_batches([stored]))
    slots: list[Any] = [{"name": name, "buckets": 100} for name in ("item", "clicked")]
    (batch,) = FeatureLoader(tmp_path, slots=[*slots, "weight"])
    import torchrec as modules

    names = ["item", "clicked"]
    config = modules.EmbeddingBagConfig(
        name="table", embedding_dim=4, num_embeddings=100, feature_names=names
    )
    tables = modules.EmbeddingBagCollection(tables=[config], is_weighted=True)
    pooled = tables(batch.to_kjt(names, weights={"clicked": "weight"}))
    a, b, c = pooled["item"].detach()
    expected = torch.stack([0.5 * b + 2.0 * a, torch.zeros(4), 3.0 * c])
    torch.testing.assert_close(pooled["clicked"].detach(), expected)
    pooled["clicked"][2].sum().backward()
    gradient = tables.embedding_bags["table"].weight.grad
    assert gradient.nonzero()[:, 0].unique().tolist() == [int(batch["item"][2])]


@pytest.mark.slow
@needs_frameworks
def test_they_pass_where_torchrec_is_installed() -> None:
    command = [str(PYTHON), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    options = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-k", "real_one"],
        env=options | variables(),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "\n3 passed, " in done.stdout, done.stdout + done.stderr
