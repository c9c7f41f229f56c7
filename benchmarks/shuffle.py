"""What the options of `shuffle` give and cost, beside what peers document, and what they do to a
model.

Four parts. `mixing`: files of rows that hold their number are delivered by featstore's loader with
several options, and by simulations of what tf.data, Hugging Face datasets and MosaicML's `py1e`
document (shuffle_parts/orders.py names the sources), all with the same number of rows in memory:
files in a batch, distance that a row travels, distance between rows stored side by side. `cost`:
CPU time against a bare `read_row_group` loop, and memory, on the workload of benchmarks/loader.py
in many files. `kill`: rows that come twice if a worker dies without a checkpoint. `model`: the
demo's DeepFM trained on files in order, with one split at a time, with `shuffle: true`, within each
month, and with one global permutation.

Demanded: at least 3.7 files in a batch of 1,024 with `interleave: 4` and 11 with 12, of 12 files
(tests/loader/test_mixing.py has the same); no row is missing after a kill; and mean AUC and loss of
`shuffle: true` within the range of the global permutation.

    python benchmarks/shuffle.py [--small] [--only mixing cost kill model] [--plot docs/shuffle.png]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from loader_parts.measuring import limit_cores
from loader_parts.workload import NARROW
from shared_parts.machine import print_result
from shuffle_parts import orders, reading, training
from shuffle_parts.mixing import mixing_of
from shuffle_parts.plot import draw

Figures = dict[str, Any]
_NUM_FILES, _SEED = 24, 7
# The share of the epoch that is in memory, a row group of each of 12 splits.
_SHARE_IN_MEMORY, _WIDTH = 1 / 50, 12
_DEMANDED = {4: 3.7, 12: 11.0}


def main() -> int:
    """Prints tables and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--small", action="store_true", help="fewer rows, rounds and seeds")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--plot", type=Path, help="where to draw the orders")
    arguments = parser.parse_args()
    result: Figures = {}
    with tempfile.TemporaryDirectory() as made:
        for name in arguments.only:
            print(f"{name}:", flush=True)
            (Path(made) / name).mkdir()
            result[name] = PARTS[name](arguments, Path(made) / name)
    ok = all(part["ok"] for part in result.values())
    print_result(result | {"ok": ok})
    return int(not ok)


def _mixing(arguments: argparse.Namespace, directory: Path) -> Figures:
    random = np.random.default_rng(_SEED)
    rows_of_file = 10_000 if arguments.small else 50_000
    sizes = random.integers(int(0.9 * rows_of_file), int(1.1 * rows_of_file), _NUM_FILES).tolist()
    memory_rows = int(_NUM_FILES * rows_of_file * _SHARE_IN_MEMORY)
    piece_rows = memory_rows // _WIDTH
    url = reading.write_rows(directory / "rows", sizes, piece_rows)
    found = {"files in order": reading.order_of(url)}
    for name, (shuffle, is_cut) in _OURS.items():
        options: dict[str, Any] = {"shuffle": {**shuffle, "window_rows": memory_rows}}
        if is_cut:
            options["dispatch"] = {"split_rows": 2 * piece_rows}
        found[name] = reading.order_of(url, **options)
    found |= _of_peers(sizes, memory_rows, piece_rows, random)
    figures: Figures = {}
    print(f"  {sum(sizes)} rows in {_NUM_FILES} files, {memory_rows} rows in memory")
    for name, order in found.items():
        assert sorted(order.tolist()) == list(range(sum(sizes))), name
        figures[name] = asdict(mixing_of(order, sizes, reading.BATCH_ROWS))
        print(f"  {name}: {figures[name]}", flush=True)
    if arguments.plot is not None:
        draw({name: found[name] for name in _DRAWN if name in found}, arguments.plot)
    months = _months(directory)
    print(f"  of 12 monthly files, by interleave: {months}")
    ok = all(months[str(width)] >= least for width, least in _DEMANDED.items())
    return {"orders": figures, "memory_rows": memory_rows, "of_12_files": months, "ok": ok}


# The options of `shuffle`, and whether files are cut into splits of two windows each.
_OURS: dict[str, tuple[dict[str, Any], bool]] = {
    "interleave: 1": ({"interleave": 1}, False),
    "interleave: 4": ({"interleave": 4}, False),
    "interleave: 12 (shuffle: true)": ({"interleave": 12}, False),
    "interleave: 12, split_rows": ({"interleave": 12}, True),
    "interleave: 24": ({"interleave": 24}, False),
    "within: month": ({"interleave": 12, "within": "month"}, False),
    "within: month, split_rows": ({"interleave": 12, "within": "month"}, True),
}
_PERMUTED = "one global permutation"
_DRAWN = (
    "interleave: 1",
    "interleave: 12 (shuffle: true)",
    "interleave: 12, split_rows",
    "within: month, split_rows",
    "tf.data: files, buffer",
    "Hugging Face 5: 10 inputs, buffer",
    "tf.data: interleave(12), buffer",
    "Mosaic py1e, small shards",
    _PERMUTED,
)


def _of_peers(
    sizes: list[int], memory_rows: int, piece_rows: int, random: np.random.Generator
) -> dict[str, orders.Rows]:
    files = orders.shuffled(orders.stored(sizes), random)
    one_by_one = orders.one_after_the_other(files)
    pieces = [
        file[first : first + piece_rows]
        for file in orders.stored(sizes)
        for first in range(0, len(file), piece_rows)
    ]
    dealt, turns = orders.dealt(files, 10), orders.interleaved(files, _WIDTH)
    return {
        "Hugging Face 4: files, buffer of 1,000": orders.buffered(one_by_one, 1_000, random),
        "Hugging Face 5: 10 inputs, buffer of 1,000": orders.buffered(dealt, 1_000, random),
        "Hugging Face 5: 10 inputs, buffer": orders.buffered(dealt, memory_rows, random),
        "tf.data: files, buffer": orders.buffered(one_by_one, memory_rows, random),
        "tf.data: interleave(12), buffer": orders.buffered(turns, memory_rows, random),
        "Mosaic py1e, shards are the files": orders.spread(files, memory_rows, random),
        "Mosaic py1e, small shards": orders.spread(
            orders.shuffled(pieces, random), memory_rows, random
        ),
        _PERMUTED: random.permutation(sum(sizes)),
    }


def _months(directory: Path) -> dict[str, float]:
    """Files in a batch of 1,024, of 12 monthly files of about 20,000 rows."""
    sizes = np.random.default_rng(_SEED).integers(18_000, 22_000, 12).tolist()
    url = reading.write_rows(directory / "months", sizes, 4_096)
    found = {}
    for width in (1, *_DEMANDED):
        order = reading.order_of(url, shuffle={"interleave": width})
        found[str(width)] = mixing_of(order, sizes, reading.BATCH_ROWS).files_in_a_batch
    return found


def _cost(arguments: argparse.Namespace, directory: Path) -> Figures:
    limit_cores(1)
    # Row groups as small as the windows of 12 splits, so that all options hold as many rows.
    workload = replace(
        NARROW,
        name="files",
        num_files=12,
        rows_per_file=33_336,
        rows_per_row_group=8_334,
        num_slots=NARROW.num_selected,
    )
    options: dict[str, Any] = {"files in order": None} | {
        f"interleave: {width}": {"interleave": width} for width in (1, 4, 12)
    }
    workload = workload.smaller(2) if arguments.small else workload
    figures = reading.costs(workload, directory, options, 2 if arguments.small else 4)
    for name, of_option in figures.items():
        print(f"  {name}: {of_option}", flush=True)
    return {"options": figures, "rows": workload.num_rows, "ok": True}


def _kill(_: argparse.Namespace, directory: Path) -> Figures:
    url = reading.write_rows(directory / "rows", [10_000] * 12, 1_000)
    figures: Figures = {}
    for width in (1, _WIDTH):
        shuffle = {"interleave": width, "window_rows": 1_000 * _WIDTH}
        found = reading.twice_after_a_kill(url, shuffle, directory / f"store-{width}")
        figures[f"interleave: {width}"] = found
        print(f"  interleave {width}: {found}", flush=True)
    ok = all(not found["missing"] and not found["more"] for found in figures.values())
    return {"options": figures, "ok": ok}


def _model(arguments: argparse.Namespace, directory: Path) -> Figures:
    figures = training.trained_in_orders(directory, range(1, 3 if arguments.small else 6))
    for name, found in figures.items():
        print(f"  {name}: {found}", flush=True)
    # Two seeds have no range to speak of.
    ok = arguments.small or training.is_like_global(figures)
    return {"orders": figures, "ok": ok}


PARTS: Mapping[str, Callable[[argparse.Namespace, Path], Figures]] = {
    "mixing": _mixing,
    "kill": _kill,
    "model": _model,
    "cost": _cost,
}

if __name__ == "__main__":
    sys.exit(main())
