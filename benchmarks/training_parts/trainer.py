"""One side's epoch, as a process of its own: `python trainer.py SIDE JSON` prints a line of JSON.

The sides are the same process apart from what gives the batches. torch has one thread, so that the
model takes one core and what feeds it may take the other. Imports come before the epoch, also those
of what a library imports at its first use, and one step of a model that is thrown away.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

# Run by its path, in an environment that has featstore's libraries but not its benchmarks.
sys.path.insert(0, str(Path(__file__).parents[1]))

from training_parts.dlrm import Dlrm, Epoch, Inputs, train
from training_parts.rows import AdsRows

_WARM_UP_ROWS = 64


def main() -> None:
    """Prints what the epoch took."""
    side, told = sys.argv[1], json.loads(sys.argv[2])
    of = AdsRows(**told["rows"])
    torch.set_num_threads(1)
    # Before tensorflow is there: triton, which torch's first step imports, crashes after it.
    train(_model(of), lambda: iter([_any_inputs(of)]), _WARM_UP_ROWS)
    read = _reader(side, of, told)
    share = told["share"]
    # Of a share, whose size is not known before, every loss counts.
    epoch: Epoch = train(_model(of), read, 0 if share else of.num_rows, told["slowdown"])
    print(json.dumps(epoch._asdict()))


def _reader(side: str, of: AdsRows, told: dict[str, Any]) -> Callable[[], Iterator[Inputs]]:
    batch_size = told["batch_size"]
    if side.startswith("tfrecord"):
        # tensorflow lives in an environment of its own.
        records = importlib.import_module("training_parts.records")
        share = told["share"]
        urls = told["urls"][share["rank"] :: share["num_ranks"]] if share else told["urls"]
        reader: Callable[[], Iterator[Inputs]] = records.RecordReader(
            of, urls, Path(told["directory"]), batch_size
        )
        return reader
    columns = importlib.import_module("training_parts.columns")
    if side == "pyarrow":
        return columns.ArrowReader(of, told["urls"], batch_size)  # type: ignore[no-any-return]
    return columns.FeatstoreReader(  # type: ignore[no-any-return]
        of, told["local"], told["urls"], batch_size, Path(told["directory"]), told["share"]
    )


def _model(of: AdsRows) -> Dlrm:
    torch.manual_seed(0)
    ids, lists, floats = (len(of.selected(kind)) for kind in "ilf")
    return Dlrm(num_ids=ids, num_lists=lists, num_floats=floats)


def _any_inputs(of: AdsRows) -> Inputs:
    ids, lists, floats = (len(of.selected(kind)) for kind in "ilf")
    one = torch.ones(_WARM_UP_ROWS, dtype=torch.int64)
    return Inputs(
        ids=[one] * ids,
        lists=[(one, torch.arange(_WARM_UP_ROWS + 1))] * lists,
        floats=torch.zeros(_WARM_UP_ROWS, floats),
        label=torch.zeros(_WARM_UP_ROWS),
    )


if __name__ == "__main__":
    main()
