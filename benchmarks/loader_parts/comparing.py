"""Peers held against the floor: same rows, same columns, equal checksums, in turn in one process."""

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from loader_parts.arrow_batches import checksum, num_rows
from loader_parts.peers import PEERS, Peer, bare, by_iter_batches
from loader_parts.records import NUM_ROWS, by_tensorflow, to_gzip, to_records

RECORDS = (
    Peer(name="TFRecord through tf.data", package="tensorflow", read=by_tensorflow, prepare=to_records),
    Peer(name="TFRecord, gzip, through tf.data", package="tensorflow", read=by_tensorflow, prepare=to_gzip),
)


def compare_peers(
    paths: Sequence[str], columns: Sequence[str], batch_size: int, directory: Path, num_repeats: int
) -> dict[str, dict[str, Any]]:
    """By name of the peer: median and extremes of its rows per second over the floor's, measured next to it; or why not."""
    figures: dict[str, dict[str, Any]] = {}
    for peer in (*PEERS, *RECORDS):
        if not peer.is_installed:
            figures[peer.name] = {"left_out": f"{peer.package} is not installed"}
        else:
            figures[peer.name] = _compare(peer, paths, columns, batch_size, directory, num_repeats)
        print(f"{peer.name}: {figures[peer.name]}", flush=True)
    return figures


def rate(counts: Iterator[int]) -> float:
    """Rows per second, from the call to the last row: a reader that reads ahead must not hide it in its start."""
    started = time.perf_counter()
    return sum(counts) / (time.perf_counter() - started)


def _compare(
    peer: Peer, paths: Sequence[str], columns: Sequence[str], batch_size: int, directory: Path, num_repeats: int
) -> dict[str, Any]:
    source = peer.prepare(paths, directory)
    is_part = peer in RECORDS
    expected = checksum(_reference(paths, columns, NUM_ROWS if is_part else None))
    found = checksum(peer.read(source, columns, batch_size))
    if found != expected:
        raise SystemExit(f"{peer.name}: rows and sum of all values are {found} instead of {expected}")
    ratios = []
    for _ in range(num_repeats):
        floor = rate(bare(paths, columns))
        ratios.append(rate(map(num_rows, peer.read(source, columns, batch_size))) / floor)
    return {"ratio": round(statistics.median(ratios), 3), "lowest": round(min(ratios), 3), "highest": round(max(ratios), 3)}


def _reference(paths: Sequence[str], columns: Sequence[str], limit: int | None) -> Any:
    if limit is None:
        return by_iter_batches(paths, columns, 8_192)
    return islice(by_iter_batches(paths, columns, limit), 1)
