"""What a table with histories does to a model: examples/din, trained on histories stored once and
on fat rows, and on rows in several orders.

Two parts. `equal`: fat rows, each with its history, which this script computes from the raw log and
`Extractor` hashes, in the same files and row groups. From each seed, the losses of all steps and
the models must be equal, bit by bit. `orders`: a table with histories has the rows of a user side
by side. They are delivered in this order, one file at a time, and mixed by `shuffle`, by default
and with 2 % of the epoch in memory; the same rows by time, in order and mixed alike; and in one
global permutation. A seed gives the initial weights and the order.

Demanded: no seed has unequal losses; and mean AUC and loss of rows by user with `shuffle: true`
within the range of the global permutation.

    python benchmarks/histories_training.py [--small] [--only equal orders]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

import featstore
from featstore import FeatureLoader
from featstore.base.processes import cached_property
from shared_parts.machine import print_result
from shuffle_parts.training import GLOBAL, figures_of, is_like_global

EXAMPLE = Path(__file__).parents[1] / "examples" / "din"
sys.path.insert(0, str(EXAMPLE))

from make_log import make_log  # noqa: E402
from model import Din  # noqa: E402
from train import HELD_OUT, buckets_of, evaluate, optimizer_of, train  # noqa: E402

IMPRESSIONS_A_DAY, NUM_DAYS, FILES_A_DAY, MAX_LEN = 22, 3, 8, 20
# A row group of each of twelve open files is 2 % of the epoch.
WIDTH, GROUPS_OF_FILE = 12, 25
CPU = torch.device("cpu")
# The slots of the example, if each row has its events.
FAT = """
spec: 1
inputs: {user_id: string, item_id: string, category_id: string, ts: timestamp, clicked: long,
  items: list<string>, categories: list<string>, times: list<timestamp>}
labels: {click: clicked}
sequences: {clicks: {of: [items, categories, times]}}
slots:
  - {slot: 1, name: user, op: hash, of: user_id}
  - {slot: 2, name: item, op: hash, of: item_id}
  - {slot: 3, name: category, op: hash, of: category_id}
  - {slot: 102, name: clicks_item, op: hash, of: items, share_slot: 2}
  - {slot: 103, name: clicks_category, op: hash, of: categories, share_slot: 3}
  - {slot: 104, name: clicks_age, op: time_since, of: [ts, times], unit: hour}
"""
Ints = npt.NDArray[np.int64]


def main() -> int:
    """Prints figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--small", action="store_true", help="fewer rows, and two seeds")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    # For batches as small as these, more threads wait for each other longer than they compute.
    torch.set_num_threads(1)
    seeds = range(1, 3 if arguments.small else 6)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        tables = Tables(Path(made), 300 if arguments.small else 900)
        result["rows"] = tables.rows.num_rows
        for name in arguments.only:
            print(f"{name}, {result['rows']} rows:", flush=True)
            result[name] = PARTS[name](tables, seeds)
    ok = all(result[name]["ok"] for name in arguments.only)
    print_result(result | {"ok": ok})
    return int(not ok)


@dataclass
class Tables:
    """Rows of the training days in several tables, each made when it is asked for.

    Attributes:
        directory: Where they lie.
        num_users: How many the log has.
    """

    directory: Path
    num_users: int

    @property
    def rows_of_group(self) -> int:
        return self.num_users * IMPRESSIONS_A_DAY // FILES_A_DAY // GROUPS_OF_FILE

    @cached_property
    def once(self) -> Path:
        """The table with histories. It has the held-out day, too."""
        make_log(self.directory, self.num_users, impressions_a_day=IMPRESSIONS_A_DAY)
        spec = yaml.safe_load((EXAMPLE / "spec.yaml").read_text())
        rows_of_file = self.rows_of_group * GROUPS_OF_FILE
        spec["output"] = {"rows_per_file": rows_of_file, "rows_per_row_group": self.rows_of_group}
        featstore.extract(
            featstore.load_spec(spec),
            self.directory / "raw",
            self.directory / "once",
            partition_from_path=["dt"],
            events={"clicks": self.directory / "clicks.parquet"},
        )
        return self.directory / "once"

    @cached_property
    def raw(self) -> pa.Table:
        """Raw rows by time, no two of which are at one time."""
        days = sorted(self.once.with_name("raw").iterdir())[:NUM_DAYS]
        rows = pa.concat_tables([pq.ParquetFile(day / "rows.parquet").read() for day in days])
        assert (np.diff(_times(rows)) > 0).all(), "times do not tell rows apart"
        return rows

    @cached_property
    def rows(self) -> pa.Table:
        """Fat rows by time."""
        extractor = featstore.Extractor(featstore.load_spec(yaml.safe_load(FAT)))
        raw = with_events(self.raw, pq.read_table(self.directory / "clicks.parquet"))
        return pa.Table.from_batches(map(extractor, raw.combine_chunks().to_batches()))

    @cached_property
    def fat(self) -> Path:
        """Fat rows in the same files and row groups as in `once`."""
        for file in featstore.open_table(self.once).data_files(where=_trained()["where"]):
            stored = pq.ParquetFile(file.url)
            groups = (
                stored.read_row_group(number, columns=["ts"])
                for number in range(stored.num_row_groups)
            )
            places = (np.searchsorted(_times(self.raw), _times(group)) for group in groups)
            path = Path(file.url).relative_to(self.once)
            self._write(self.directory / "fat" / path, places)
        return self.directory / "fat"

    @cached_property
    def by_time(self) -> Path:
        """Fat rows by time, in as many files and row groups of equal sizes."""
        for number, places in enumerate(self._split(self.rows.num_rows, NUM_DAYS * FILES_A_DAY)):
            groups = np.array_split(places, GROUPS_OF_FILE)
            self._write(self.directory / "by_time" / f"{number:02}.parquet", groups)
        return self.directory / "by_time"

    def permuted(self, seed: int) -> Path:
        """Fat rows in the order that a seed gives."""
        order = np.random.default_rng(seed).permutation(self.rows.num_rows)
        self._write(self.directory / "permuted" / "rows.parquet", [order])
        return self.directory / "permuted"

    @staticmethod
    def _split(num_rows: int, parts: int) -> list[Ints]:
        return np.array_split(np.arange(num_rows), parts)

    def _write(self, path: Path, groups: Iterable[Ints]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, self.rows.schema) as file:
            for places in groups:
                file.write_table(self.rows.take(pa.array(places)))


def with_events(rows: pa.Table, events: pa.Table) -> pa.Table:
    """Raw rows with lists of the last events of their users before their times."""
    span_us = 1 << 50  # Longer than from the first event to the last row.
    begin = min(_times(rows).min(), _times(events).min())

    def places(table: pa.Table) -> tuple[Ints, Ints]:
        """Where the block of a user begins, and the time in it, on one line of all users."""
        of_user = np.array([int(text.split()[1]) for text in table["user_id"].to_pylist()])
        return of_user * span_us, of_user * span_us + _times(table) - begin

    order = np.argsort(places(events)[1], kind="stable")
    events = events.take(pa.array(order))
    line = places(events)[1]
    first, at = (np.searchsorted(line, found) for found in places(rows))
    lengths = np.minimum(at - first, MAX_LEN)
    offsets = np.concatenate([[0], lengths.cumsum()])
    taken = pa.array(np.arange(offsets[-1]) + np.repeat(at - offsets[1:], lengths))
    for name, of in (("items", "item_id"), ("categories", "category_id"), ("times", "ts")):
        values = events[of].combine_chunks().take(taken)
        rows = rows.append_column(name, pa.ListArray.from_arrays(pa.array(offsets, "i4"), values))
    return rows


def _times(table: pa.Table) -> Ints:
    return np.asarray(table["ts"].cast("i8").to_numpy())


def _trained() -> dict[str, Any]:
    """The example's training config, with smaller batches of fewer events."""
    config: dict[str, Any] = yaml.safe_load((EXAMPLE / "train.yaml").read_text())
    cap = {"max_values": 4_000, "of": "clicks_item"}
    config |= {"batch": cap, "batch_size": 256, "memory_budget": "2GB"}
    return config | {"histories": {"clicks": {"max_len": MAX_LEN}}}


def loader_of(url: Path, *, seed: int, shuffle: Any) -> FeatureLoader:
    """Reads the training rows of a table."""
    config = _trained() | {"table": str(url), "seed": seed, "shuffle": shuffle}
    if url.name != "once":  # Of the training days only, and without histories.
        del config["where"], config["histories"]
    return FeatureLoader.from_config(config)


def trained(url: Path, *, seed: int, shuffle: Any) -> tuple[Din, list[float]]:
    """A model after one epoch, and the loss of each step."""
    torch.manual_seed(seed)
    model = Din(buckets_of(_trained()))
    optimizer = optimizer_of(model)
    with loader_of(url, seed=seed, shuffle=shuffle) as loader:
        return model, [loss.item() for loss in train(model, optimizer, loader, CPU)]


def users_in_a_batch(url: Path, shuffle: Any) -> float:
    """The mean number of different users."""
    with loader_of(url, seed=1, shuffle=shuffle) as loader:
        users = [len(set(batch["user"].tolist())) for batch in loader]
    return round(sum(users) / len(users), 1)


def evaluated(model: Din, tables: Tables) -> tuple[float, float]:
    """AUC and mean loss on the held-out day."""
    changes = {"table": str(tables.once), "where": HELD_OUT, "shuffle": None}
    with FeatureLoader.from_config(_trained() | changes) as loader:
        return evaluate(model, loader, CPU)[:2]


def _equal(tables: Tables, seeds: Sequence[int]) -> dict[str, Any]:
    unequal, num_steps = list[int](), 0
    for seed in seeds:
        once, losses = trained(tables.once, seed=seed, shuffle=True)
        fat, losses_of_fat = trained(tables.fat, seed=seed, shuffle=True)
        pairs = zip(once.parameters(), fat.parameters(), strict=True)
        if losses != losses_of_fat or not all(torch.equal(*pair) for pair in pairs):
            unequal.append(seed)
        num_steps += len(losses)
        print(f"  seed {seed}: {len(losses)} steps, the last loss {losses[-1]:.4f}", flush=True)
    figures = {"seeds": len(seeds), "steps": num_steps, "unequal_seeds": unequal}
    print(f"  {figures}")
    return figures | {"ok": not unequal}


BY_USER = "by user, shuffle: true"


def _orders(tables: Tables, seeds: Sequence[int]) -> dict[str, Any]:
    # Row groups are not all of the full size.
    few = {"window_rows": WIDTH * tables.rows_of_group * 3 // 4, "interleave": WIDTH}
    orders: dict[str, tuple[Callable[[int], Path], Any]] = {
        "by user, in order": (lambda _: tables.once, None),
        "by user, interleave: 1": (lambda _: tables.once, few | {"interleave": 1}),
        "by user, 2 % in memory": (lambda _: tables.once, few),
        BY_USER: (lambda _: tables.once, True),
        "by time, in order": (lambda _: tables.by_time, None),
        "by time, 2 % in memory": (lambda _: tables.by_time, few),
        GLOBAL: (tables.permuted, None),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in orders}
    for seed in seeds:
        for name, (table, shuffle) in orders.items():
            model, _ = trained(table(seed), seed=seed, shuffle=shuffle)
            found[name].append(evaluated(model, tables))
            print(f"  seed {seed}, {name}: AUC and loss {found[name][-1]}", flush=True)
    figures: dict[str, Any] = {}
    for name, (table, shuffle) in orders.items():
        areas, losses = zip(*found[name], strict=True)
        figures[name] = {
            "auc": figures_of(list(areas)),
            "loss": figures_of(list(losses)),
            "users_in_a_batch": users_in_a_batch(table(1), shuffle),
        }
        print(f"  {name}: {figures[name]}", flush=True)
    # Two seeds have no range to speak of.
    return {"orders": figures, "ok": len(seeds) == 2 or is_like_global(figures, BY_USER)}


PARTS: Mapping[str, Callable[[Tables, Sequence[int]], dict[str, Any]]] = {
    "equal": _equal,
    "orders": _orders,
}

if __name__ == "__main__":
    sys.exit(main())
