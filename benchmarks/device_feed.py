"""Batches to a GPU: the feed's copy rate against a plain pinned copy of the same bytes, and how
long a small DLRM waits, whose embeddings are looked up straight from the packed buffers.

One command, with its data, under five minutes. Without a GPU it says so and ends with 0: nothing is
measured then. `--dry-run` runs every step on the CPU, over few rows, and demands only what is no
figure: equal batches, and lookups without a copy.

    python benchmarks/device_feed.py [--small | --dry-run]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from featstore.tensors.packed import PackedColumns
from loader_parts.workload import NARROW, write
from shared_parts.machine import print_result

REQUIRED_COPY_RATIO, ALLOWED_WAIT_SHARE = 0.9, 0.02
BUCKETS, WIDTH = 100_000, 64
_WARM_UP_STEPS, _COPIES, _PAIRS, _TIMES = 5, 20, 15, 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where the rows are, and how they are read.

    Attributes:
        device: Where batches go to.
        directory: The table.
        batch_size: Rows of a batch.
    """

    device: torch.device
    directory: str
    batch_size: int

    def loader(self) -> FeatureLoader:
        slots = [
            {"name": name, "buckets": BUCKETS} if not name.startswith("f") else name
            for name in NARROW.selected
        ]
        return FeatureLoader(
            self.directory,
            slots=slots,
            batch_size=self.batch_size,
            order="static",
        )

    def longer(self, times: int) -> "Run":
        """The same files several times, under other names, in a table of their own."""
        directory = Path(f"{self.directory}-{times}-times")
        directory.mkdir()
        for path in Path(self.directory).iterdir():
            for number in range(times):
                (directory / f"{number}-{path.name}").hardlink_to(path)
        return replace(self, directory=str(directory))

    def wait(self) -> None:
        """Returns when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line `RESULT {json}`; 1 where a demand is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="a fourth of the rows")
    size.add_argument("--dry-run", action="store_true", help="on the CPU, nothing is demanded")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print_result({"skipped": "no GPU", "ok": True})
        return 0
    of = replace(NARROW, num_files=NARROW.num_files // 4) if options.small else NARROW
    if options.dry_run:
        of = replace(NARROW, name="dry", num_files=1, rows_per_file=1024)
    with tempfile.TemporaryDirectory() as made:
        run = Run(
            device=torch.device("cpu" if options.dry_run else "cuda"),
            directory=str(Path(write(of, Path(made))[0]).parent),
            batch_size=256 if options.dry_run else 4096,
        )
        result: dict[str, Any] = {
            "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
            "is_dry_run": options.dry_run,
            **same_batches(run),
            **copies(run),
            **waits(run),
        }
    result["ok"] = result["batches_are_equal"] and result["lookups_are_views"]
    if not options.dry_run:  # What a CPU copies and waits says nothing of a GPU.
        result["required_copy_ratio"] = REQUIRED_COPY_RATIO
        result["allowed_wait_share"] = ALLOWED_WAIT_SHARE
        result["ok"] &= result["copy_ratio"] >= REQUIRED_COPY_RATIO
        result["ok"] &= result["wait_share"] <= ALLOWED_WAIT_SHARE
    print_result(result)
    return 0 if result["ok"] else 1


def same_batches(run: Run) -> dict[str, bool]:
    """Whether the first batch on the device is the loader's, and whether each of its columns is a
    view of the one buffer that was copied, so that embeddings are looked up from it.
    """
    with run.loader() as loader, run.loader() as other:
        plain, moved = next(iter(loader)), next(iter(other.to_device(run.device)))
        pairs = [
            pair
            for name in NARROW.selected
            for pair in zip(_tensors(plain[name]), _tensors(moved[name]), strict=True)
        ]
        equal = all(torch.equal(a.nan_to_num(), b.cpu().nan_to_num()) for a, b in pairs)
        columns = moved.columns
        assert isinstance(columns, PackedColumns)
        memory = {buffer.untyped_storage().data_ptr() for buffer in columns.buffers}
        views = len(memory) == 1 and all(
            tensor.untyped_storage().data_ptr() in memory for _, tensor in pairs
        )
    return {"batches_are_equal": equal, "lookups_are_views": views}


def _tensors(column: torch.Tensor | Jagged) -> tuple[torch.Tensor, ...]:
    return (column.values, column.offsets) if isinstance(column, Jagged) else (column,)


def copies(run: Run) -> dict[str, float]:
    """Bytes per second of batches packed in pinned memory, as the feed copies them, and of a plain
    tensor of as many bytes, by turns.
    """
    pin = run.device.type == "cuda"
    with run.loader() as loader:
        batch = next(iter(loader.to_device("cpu")))
    columns = batch.columns
    assert isinstance(columns, PackedColumns)
    [buffer] = columns.buffers
    packed = columns.moved(pin=True) if pin else columns
    plain = torch.empty(len(buffer), dtype=torch.uint8, pin_memory=pin)
    how: dict[str, Any] = {"device": run.device, "non_blocking": True, "copy": True}
    pairs = [
        (_rate(lambda: packed.moved(**how), run), _rate(lambda: plain.to(**how), run))
        for _ in range(1 + _PAIRS)
    ][1:]  # The first is cold.
    feed, other = map(median, zip(*pairs, strict=True))
    return {
        "batch_bytes": len(buffer),
        "feed_bytes_per_s": round(feed * len(buffer)),
        "plain_bytes_per_s": round(other * len(buffer)),
        "copy_ratio": round(median(feed / other for feed, other in pairs), 3),
    }


def _rate(copy: Callable[[], object], run: Run) -> float:
    """Copies per second."""
    began_s = time.perf_counter()
    for _ in range(_COPIES):
        copy()
    run.wait()
    return _COPIES / (time.perf_counter() - began_s)


class Dlrm(nn.Module):
    """Embedding bags of all ids, a bottom of the floats, dot products of all pairs, and a top."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = [name for name in NARROW.selected if not name.startswith("f")]
        self.floats = [name for name in NARROW.selected if name.startswith("f")]
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(BUCKETS, WIDTH, mode="sum", sparse=True) for _ in self.ids
        )
        self.bottom = nn.Sequential(
            nn.Linear(len(self.floats), 512), nn.ReLU(), nn.Linear(512, WIDTH)
        )
        pairs = (len(self.ids) + 1) * len(self.ids) // 2
        self.top = nn.Sequential(nn.Linear(pairs + WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        dense = self.bottom(torch.stack([batch[name] for name in self.floats], 1).nan_to_num())
        vectors = [dense]
        for name, bag in zip(self.ids, self.bags, strict=True):
            column = batch[name]
            vectors.append(
                bag(column.values, column.offsets[:-1])
                if isinstance(column, Jagged)
                else bag(column[:, None])
            )
        stacked = torch.stack(vectors, 1)
        dots = stacked @ stacked.transpose(1, 2)
        first, second = torch.triu_indices(dots.shape[1], dots.shape[1], 1, device=dots.device)
        logits: torch.Tensor = self.top(torch.cat([dense, dots[:, first, second]], 1))
        return logits


def waits(run: Run) -> dict[str, float]:
    """The share of a training's time in which the device had nothing to do as no batch was there,
    in the middle of an epoch: after its first steps, and before its end.
    """
    model = Dlrm().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    waited_s, num_rows, num_steps, began_s = 0.0, 0, 0, 0.0
    with run.longer(_TIMES).loader() as loader:
        batches = iter(loader.to_device(run.device, prefetch=2))
        while True:
            asked_s = time.perf_counter()
            if (batch := next(batches, None)) is None:
                break
            arrived_s = time.perf_counter()
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.wait()
            num_steps += 1
            if num_steps > _WARM_UP_STEPS:
                began_s = began_s or asked_s
                num_rows, waited_s = num_rows + batch.num_rows, waited_s + arrived_s - asked_s
    total_s = time.perf_counter() - began_s
    return {
        "num_steps": num_steps,
        "wait_share": round(waited_s / total_s, 4),
        "rows_per_s": round(num_rows / total_s),
    }


if __name__ == "__main__":
    sys.exit(main())
