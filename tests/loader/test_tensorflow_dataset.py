"""Batches as a `tf.data.Dataset`, in a real tensorflow."""

import sys
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import ConfigError, MissingDependencyError
from featstore.loader.feature_loader import FeatureLoader
from tests.frameworks_environment import PYTHON, needs_frameworks, variables
from tests.programs import run_with


def unchanged(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    "options", [{"transform": unchanged}, {"tail": "pad"}], ids=["transform", "pad"]
)
def test_what_is_not_known_before_the_first_batch_is_refused(
    table_url: str, options: dict[str, Any]
) -> None:
    with (
        FeatureLoader(table_url, slots=["row"], **options) as loader,
        pytest.raises(
            ConfigError,
            match=r"to_tf\(\): expected a loader without transform and tail pad.*map\(\)",
        ),
    ):
        loader.to_tf()


def test_a_dtype_that_numpy_does_not_have_is_refused(table_url: str) -> None:
    with (
        FeatureLoader(table_url, slots=[{"name": "half", "dtype": "bfloat16"}]) as loader,
        pytest.raises(ConfigError, match=r"to_tf\(\): slot 'half': expected a dtype that numpy"),
    ):
        loader.to_tf()


def test_without_tensorflow_it_says_what_to_install(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with (
        FeatureLoader(table_url, slots=["row"]) as loader,
        pytest.raises(
            MissingDependencyError,
            match=r"to_tf\(\): tensorflow is not installed: pip install tensorflow",
        ),
    ):
        loader.to_tf()


JOB = """
import sys
import numpy as np
import tensorflow as tf
import featstore

SLOTS = [
    {"name": "row", "dtype": "int32", "buckets": 1000},
    {"name": "half", "dtype": "float16"},
    "tags",
    "pair",
]


def loader_for(**options):
    return featstore.FeatureLoader(sys.argv[1], slots=SLOTS, labels=["click"], batch_size=40, **options)


def same(found, expected):
    assert list(found) == list(expected)
    for name, column in found.items():
        wanted = expected[name]
        if isinstance(column, tf.RaggedTensor):
            pairs = [(column.values, wanted.values), (column.row_splits, wanted.offsets)]
        else:
            pairs = [(column, wanted)]
        for mine, theirs in pairs:
            assert mine.numpy().dtype == theirs.dtype
            assert np.array_equal(mine.numpy(), theirs, equal_nan=theirs.dtype.kind == "f")


for options in ({}, {"shuffle": True}):
    dataset = loader_for(**options).to_tf()
    slots, labels = dataset.element_spec
    assert isinstance(slots["tags"], tf.RaggedTensorSpec)
    assert slots["pair"] == tf.TensorSpec((None, 2), tf.int64)
    batches = loader_for(**options).numpy()
    for _ in range(2):  # Two epochs.
        num_rows = 0
        for (slots, labels), expected in zip(dataset, batches, strict=True):
            same(slots, expected.slots)
            same(labels, expected.labels)
            num_rows += expected.num_rows
        assert num_rows == 280
weights = [weight.numpy() for _, _, weight in loader_for(weight="half").to_tf()]
assert np.concatenate(weights).tolist() == [row / 2 for row in range(280)]
print("equal")
"""


@needs_frameworks
@pytest.mark.slow
def test_a_dataset_has_what_the_loader_delivers(table_url: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = run_with(PYTHON, tmp_path / "job.py", table_url, variables=variables())
    assert done.stdout.splitlines()[-1] == "equal"
