"""What the order of rows does to a model: the demo's DeepFM, trained on the demo's flights in
several orders, from several seeds.

A seed gives the initial weights and the order. All orders are read by the same loader with the same
batches; for one global permutation, a copy of the table is written with its rows in that order.
"""

import shutil
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from torch.nn import functional

import featstore
from featstore import FeatureLoader
from featstore.tools import demo_flights as flights
from featstore.tools.demo_deepfm import DeepFM
from featstore.tools.demo_train import auc, train

DEMO = Path(flights.__file__).parent
TRAINED, EVALUATED = "month < '2013-11'", "month >= '2013-11'"
GLOBAL, DEFAULT = "global permutation", "shuffle: true"
ORDERS: dict[str, Any] = {
    "files in order": None,
    "interleave: 1": {"interleave": 1},
    DEFAULT: True,
    "interleave: 4": {"interleave": 4},
    "within: month": {"within": "month"},
}
Figures = dict[str, dict[str, Any]]


def trained_in_orders(directory: Path, seeds: range) -> Figures:
    """AUC and mean loss on the last two months after one epoch over the first ten, of each order:
    the values of all seeds, their mean and their range.
    """
    table, config = _table(directory), _config()
    loaders: dict[str, Callable[[int], FeatureLoader]] = {
        name: partial(_loader, config, table, shuffle) for name, shuffle in ORDERS.items()
    }
    loaders[GLOBAL] = partial(_permuted, config, table, directory / "permuted")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for seed in seeds:
        for name, loader in loaders.items():
            with loader(seed) as batches:
                model, _ = train(batches, seed=seed)
            found[name].append(_evaluated(model, config, table))
            print(f"  seed {seed}, {name}: AUC {found[name][-1][0]:.4f}", flush=True)
    return {
        name: {
            "auc": figures_of([auc for auc, _ in of_seeds]),
            "loss": figures_of([loss for _, loss in of_seeds]),
        }
        for name, of_seeds in found.items()
    }


def is_like_global(figures: Figures, order: str = DEFAULT) -> bool:
    """Whether the means of an order lie in the ranges of the global permutation."""
    return all(
        figures[GLOBAL][what]["least"]
        <= figures[order][what]["mean"]
        <= figures[GLOBAL][what]["most"]
        for what in ("auc", "loss")
    )


def figures_of(values: list[float]) -> dict[str, Any]:
    """A figure of all seeds."""
    return {
        "mean": round(statistics.mean(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "values": [round(value, 4) for value in values],
    }


def _table(directory: Path) -> str:
    """The flights, extracted without Spark."""
    raw, table = directory / "raw", directory / "table"
    flights.write_flights(raw)
    for name in ("flights.spec.yaml", "flights.spec.lock.json"):
        shutil.copy(DEMO / name, directory)
    keys = [flights.PARTITION_KEY]
    featstore.extract(directory / "flights.spec.yaml", raw, table, partition_from_path=keys)
    return str(table)


def _config() -> dict[str, Any]:
    config = yaml.safe_load((DEMO / "flights.train.yaml").read_text())
    return {name: config[name] for name in ("slots", "labels", "batch_size")}


def _loader(config: Mapping[str, Any], table: str, shuffle: Any, seed: int) -> FeatureLoader:
    return FeatureLoader(table, where=TRAINED, shuffle=shuffle, seed=seed, **config)


def _permuted(config: Mapping[str, Any], table: str, directory: Path, seed: int) -> FeatureLoader:
    """Reads a copy of the training rows, all of which are permuted, in order."""
    files = featstore.open_table(table).data_files(TRAINED)
    rows = pa.concat_tables([pq.ParquetFile(file.url).read() for file in files])
    order = np.random.default_rng(seed).permutation(rows.num_rows)
    directory.mkdir(exist_ok=True)
    pq.write_table(rows.take(pa.array(order)), directory / "rows.parquet", row_group_size=1 << 15)
    return FeatureLoader(str(directory), seed=seed, **config)


@torch.no_grad()
def _evaluated(model: DeepFM, config: Mapping[str, Any], table: str) -> tuple[float, float]:
    model.eval()
    labels, scores = list[torch.Tensor](), list[torch.Tensor]()
    with FeatureLoader(table, where=EVALUATED, **config) as loader:
        for batch in loader:
            labels.append(next(iter(batch.labels.values())).clone())
            scores.append(model(batch))
    label, score = torch.cat(labels), torch.cat(scores)
    loss = functional.binary_cross_entropy_with_logits(score, label).item()
    return auc(label.numpy(), score.numpy()), loss
