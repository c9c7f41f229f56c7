"""h(value) alone: featstore, polars-hash, and a C loop compiled here, over the same values."""

import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars_hash  # noqa: F401  (registers the namespace `nchash`)
import pyarrow as pa

import featstore
from featstore.ops import hashing
from featstore.ops.arrays import array_of, bytes_of, stored_offsets_of

_BATCH_ROWS = 16_384
_LOOP = """
#include "xxh64.h"
int loop(
    const uint8_t* data, int64_t num_bytes, const int32_t* offsets, int64_t n, uint64_t seed,
    uint64_t* hashes) {
  return hash_texts(data, num_bytes, offsets, n, seed, hashes);
}
"""


def measure(num_values: int, num_rounds: int) -> dict[str, dict[str, float]]:
    """Nanoseconds of CPU a value, by kind of values and side; SystemExit where two sides give
    different hashes.
    """
    figures = {}
    for kind, values in _kinds(num_values).items():
        batches = [values.slice(start, _BATCH_ROWS) for start in range(0, len(values), _BATCH_ROWS)]
        sides = _sides(batches)
        if len({_sum(run()) for run in sides.values()}) > 1:
            raise SystemExit(f"{kind}: the sides hash differently")
        spent: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(num_rounds):
            for side, run in sides.items():
                started = time.process_time()
                run()
                spent[side].append((time.process_time() - started) * 1e9 / len(values))
        figures[kind] = {side: round(statistics.median(spent[side]), 1) for side in sides}
    return figures


def _kinds(num_values: int) -> dict[str, pa.Array]:
    rng = np.random.default_rng(5)
    names = [f"user_{number}" for number in rng.integers(0, 10**7, num_values)]
    return {
        "12 characters, distinct": pa.array(names),
        "12 characters, 500 distinct": pa.array(names[:500]).take(
            pa.array(rng.integers(0, 500, num_values))
        ),
        "10 to 110 characters": pa.array([name * (1 + i % 9) for i, name in enumerate(names)]),
    }


def _sides(batches: list[pa.Array]) -> dict[str, Callable[[], list[Any]]]:
    series = [pl.Series("value", batch) for batch in batches]
    hashed = pl.col("value").nchash.xxhash64(seed=hashing.SEED)
    sides: dict[str, Callable[[], list[Any]]] = {
        "featstore": lambda: [hashing.value_hash(batch) for batch in batches],
        "polars-hash": lambda: [
            one.to_frame().select(hashed).to_series().to_numpy() for one in series
        ],
    }
    loop = _compiled_loop()
    if loop is not None:
        sides["C loop"] = lambda: [_looped(loop, batch) for batch in batches]
    return sides


def _compiled_loop() -> Any:
    """The loop for this very processor, None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="loop-"))
    (folder / "loop.c").write_text(_LOOP)
    library, headers = str(folder / "loop.so"), str(Path(featstore.__file__).parent / "native")
    command = [
        compiler,
        "-O3",
        "-march=native",
        "-shared",
        "-fPIC",
        "-I",
        headers,
        "-o",
        library,
        str(folder / "loop.c"),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(library).loop


def _looped(loop: Any, batch: pa.Array) -> Any:
    hashes = np.empty(len(batch), np.uint64)
    data, offsets = bytes_of(batch), stored_offsets_of(batch)
    done = loop(
        ctypes.c_void_p(data.ctypes.data),
        ctypes.c_int64(data.nbytes),
        ctypes.c_void_p(offsets.ctypes.data),
        ctypes.c_int64(len(batch)),
        ctypes.c_uint64(hashing.SEED),
        ctypes.c_void_p(hashes.ctypes.data),
    )
    assert done, "the offsets of an array that was checked are outside of its bytes"
    return array_of(hashes.view(np.int64))


def _sum(hashed: list[Any]) -> int:
    """The sum of all hashes modulo 2**64."""
    words = (np.asarray(batch).view(np.uint64) for batch in hashed)
    return sum(int(batch.sum(dtype=np.uint64)) for batch in words) % 2**64
