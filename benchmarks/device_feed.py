"""Batches to a GPU: the feed's copy rate against a plain pinned copy of the same bytes, and how
long a small DLRM waits.

Without a GPU it says so and ends with 0: nothing is measured then.

    python benchmarks/device_feed.py [--small]
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch, Jagged
from featstore.tensors.packed import PackedColumns
from loader_parts.workload import NARROW, write
from shared_parts.machine import print_result

REQUIRED_COPY_RATIO, ALLOWED_WAIT = 0.8, 0.1
BUCKETS, WIDTH = 100_000, 64


def main() -> int:
    """Prints one line `RESULT {json}`; 1 where a figure is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a fourth of the rows")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print_result({"skipped": "no GPU", "ok": True})
        return 0
    with tempfile.TemporaryDirectory() as made:
        of = replace(NARROW, num_files=NARROW.num_files // 4) if arguments.small else NARROW
        directory = str(Path(write(of, Path(made))[0]).parent)
        result: dict[str, Any] = {
            "device": torch.cuda.get_device_name(),
            **copies(directory),
            **waits(directory),
        }
    result["required_copy_ratio"], result["allowed_wait_share"] = REQUIRED_COPY_RATIO, ALLOWED_WAIT
    result["ok"] = (
        result["copy_ratio"] >= REQUIRED_COPY_RATIO and result["wait_share"] <= ALLOWED_WAIT
    )
    print_result(result)
    return 0 if result["ok"] else 1


def _loader(directory: str) -> FeatureLoader:
    slots = [
        {"name": name, "buckets": BUCKETS} if not name.startswith("f") else name
        for name in NARROW.selected
    ]
    return FeatureLoader(directory, slots=slots, batch_size=4096, num_epochs=3)


def copies(directory: str) -> dict[str, float]:
    """Bytes per second of batches packed in pinned memory, as the feed copies them, and of a plain
    tensor of as many bytes.
    """
    with _loader(directory) as loader:
        batch = next(iter(loader.to_device("cpu")))
    columns = batch.columns
    assert isinstance(columns, PackedColumns)
    [buffer] = columns.buffers
    packed = columns.moved(pin=True)
    plain = torch.empty(len(buffer), dtype=torch.uint8, pin_memory=True)
    rates = [_rate(lambda: packed.moved(device="cuda", non_blocking=True), len(buffer))]
    rates.append(_rate(lambda: plain.to("cuda", non_blocking=True), len(buffer)))
    return {
        "batch_bytes": len(buffer),
        "feed_bytes_per_s": round(rates[0]),
        "plain_bytes_per_s": round(rates[1]),
        "copy_ratio": round(rates[0] / rates[1], 3),
    }


def _rate(copy: Any, num_bytes: int, repeats: int = 200) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    copy()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        copy()
    end.record()
    torch.cuda.synchronize()
    return float(repeats * num_bytes / (begin.elapsed_time(end) / 1e3))


class Dlrm(nn.Module):
    """Embedding bags of all ids, a bottom of the floats, dot products of all pairs, and a top."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = [name for name in NARROW.selected if not name.startswith("f")]
        self.floats = [name for name in NARROW.selected if name.startswith("f")]
        self.bags = nn.ModuleList(nn.EmbeddingBag(BUCKETS, WIDTH, mode="sum") for _ in self.ids)
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


def waits(directory: str) -> dict[str, float]:
    """The share of a training's time in which the GPU had nothing to do as no batch was there,
    after a first epoch's start.
    """
    model = Dlrm().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    waited, num_rows, started = 0.0, 0, 0.0
    with _loader(directory) as loader:
        batches = iter(loader.to_device("cuda", prefetch=2))
        for step in range(10_000):
            asked = time.perf_counter()
            if (batch := next(batches, None)) is None:
                break
            arrived = time.perf_counter()
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            if step >= 5:
                started, num_rows, waited = (
                    started or asked,
                    num_rows + batch.num_rows,
                    waited + arrived - asked,
                )
    total = time.perf_counter() - started
    return {"wait_share": round(waited / total, 4), "rows_per_s": round(num_rows / total)}


if __name__ == "__main__":
    sys.exit(main())
