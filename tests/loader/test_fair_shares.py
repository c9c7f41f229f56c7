"""Ranks that train in step get nearly equal shares of a table of few splits, in real processes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.parquet_files import put_row_files
from tests.programs import torchrun

NUM_FILES, ROWS, BATCH_ROWS = 24, 3000, 100
RANK = """
import json, logging, os, signal, sys
import torch.distributed as distributed
import featstore

signal.alarm(100)  # Nobody outlives a test that failed.
heard = []
logging.basicConfig(handlers=[type("Heard", (logging.Handler,), {"emit": lambda _, record: heard.append(record.getMessage())})()])
table, out, options = *sys.argv[1:3], json.loads(sys.argv[3])
distributed.init_process_group("gloo")
rank = distributed.get_rank()
epochs = []
with featstore.FeatureLoader(table, slots=["row"], tail="pad", shuffle=True, **options) as loader:
    for _ in range(2):
        rows, num_steps, num_padding = [], 0, 0
        for batch in loader:
            # All ranks make each step together.
            distributed.barrier()
            num_steps += 1
            num_padding += batch.is_padding
            rows += [] if batch.is_padding else batch["row"].tolist()
        epochs.append([rows, num_steps, num_padding, loader.verdict()])
with open(f"{out}/{rank}.json", "w") as file:
    json.dump([epochs, [text for text in heard if "splits for" in text]], file)
distributed.barrier()
distributed.destroy_process_group()
"""


def run_ranks(directory: Path, num_ranks: int, num_files: int, **options: object) -> list[Any]:
    """What each rank read in each epoch, and what it was warned of."""
    table = put_row_files(directory / "table", [ROWS] * num_files, row_group_size=ROWS)
    (directory / "rank.py").write_text(RANK)
    arguments = (table, directory, json.dumps({"batch_size": BATCH_ROWS} | options))
    done = torchrun(directory / "rank.py", *arguments, num_processes=num_ranks)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(num_ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_in_step_read_equal_shares_of_a_table_of_few_files(
    tmp_path: Path, num_ranks: int
) -> None:
    ranks = run_ranks(tmp_path, num_ranks, NUM_FILES)
    for epoch in range(2):
        read = [epochs[epoch] for epochs, _ in ranks]
        assert Counter(row for rows, *_ in read for row in rows) == Counter(range(NUM_FILES * ROWS))
        assert {len(rows) for rows, *_ in read} == {NUM_FILES * ROWS // num_ranks}
        assert {tuple(steps) for _, *steps, _ in read} == {
            (NUM_FILES * ROWS // num_ranks // BATCH_ROWS, 0)
        }
        assert not any("padding" in verdict for *_, verdict in read)
    assert not any(heard for _, heard in ranks)


@pytest.mark.slow
def test_shares_of_too_few_splits_differ_by_one_which_is_told(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 2, 7)
    for epoch in range(2):
        read = [epochs[epoch] for epochs, _ in ranks]
        assert Counter(row for rows, *_ in read for row in rows) == Counter(range(7 * ROWS))
        assert sorted(len(rows) for rows, *_ in read) == [3 * ROWS, 4 * ROWS]
        for rows, num_steps, num_padding, verdict in read:
            assert num_steps == 4 * ROWS // BATCH_ROWS
            assert num_padding == num_steps - len(rows) // BATCH_ROWS
            assert (f"; {num_padding} of {num_steps} steps were padding" in verdict) == bool(
                num_padding
            )
    assert [len(heard) for _, heard in ranks] == [1, 0]
    assert ranks[0][1][0].startswith("7 splits for 2 workers that train in step")
