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
import json, logging, os, sys
import torch.distributed as distributed
import featstore

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

STOPPED = """
import json, os, sys
import torch.distributed as distributed
import featstore

table, out, options = *sys.argv[1:3], json.loads(sys.argv[3])
distributed.init_process_group("gloo")
rank, states = distributed.get_rank(), [None] * distributed.get_world_size()
rows = []
with featstore.FeatureLoader(table, slots=["row"], tail="pad", shuffle=True, **options) as loader:
    if os.path.exists(f"{out}/state.json"):
        loader.load_state_dict(json.loads(open(f"{out}/state.json").read()))
    for step, batch in enumerate(loader):
        distributed.barrier()
        rows += [] if batch.is_padding else batch["row"].tolist()
        if step == int(sys.argv[4]):
            break
    loader.ack()
    distributed.all_gather_object(states, loader.state_dict())
with open(f"{out}/rows-{len(states)}-{rank}.json", "w") as file:
    json.dump(rows, file)
if rank == 0:
    with open(f"{out}/state.json", "w") as file:
        json.dump(featstore.FeatureLoader.merge_states(states), file)
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
@pytest.mark.parametrize(("reserve_s", "most_rows"), [(0.001, 2 * BATCH_ROWS), (2.0, ROWS)])
def test_shares_of_too_few_splits_differ_by_what_is_reserved_which_is_told(
    tmp_path: Path, reserve_s: float, most_rows: int
) -> None:
    """A split more for one of them, of which the other takes half once it is idle: less if the
    first one has reserved more. These loops read a split in less than two seconds, so by default
    they may have reserved all of it.
    """
    ranks = run_ranks(tmp_path, 2, 7, dispatch={"reserve_s": reserve_s})
    for epoch in range(2):
        read = [epochs[epoch] for epochs, _ in ranks]
        assert Counter(row for rows, *_ in read for row in rows) == Counter(range(7 * ROWS))
        fewer, more = sorted(len(rows) for rows, *_ in read)
        assert more - fewer <= most_rows
        assert len({num_steps for _, num_steps, *_ in read}) == 1
        for rows, num_steps, num_padding, verdict in read:
            short = num_steps - num_padding - len(rows) / BATCH_ROWS
            assert 0 <= short < 2, "the last batch of a claim may be short"
            text = f"; {num_padding} of {num_steps} steps were padding"
            assert (text in verdict) == (num_padding > num_steps / 10)
    assert [len(heard) for _, heard in ranks] == [1, 0]
    assert ranks[0][1][0].startswith("7 splits for 2 workers that train in step")


@pytest.mark.slow
@pytest.mark.parametrize("more", [2, 4])
def test_an_epoch_goes_on_with_another_number_of_ranks(tmp_path: Path, more: int) -> None:
    table = put_row_files(tmp_path / "table", [ROWS] * NUM_FILES, row_group_size=ROWS)
    (tmp_path / "rank.py").write_text(STOPPED)
    read: list[list[int]] = []
    for num_ranks, last_step in ((3, 50), (more, 10**6)):
        options = json.dumps({"batch_size": BATCH_ROWS})
        arguments = (table, tmp_path, options, last_step)
        done = torchrun(tmp_path / "rank.py", *arguments, num_processes=num_ranks)
        assert done.returncode == 0, done.stderr[-5000:]
        names = (f"rows-{num_ranks}-{rank}.json" for rank in range(num_ranks))
        read += [json.loads((tmp_path / name).read_text()) for name in names]
    assert [len(rows) for rows in read[:3]] == [51 * BATCH_ROWS] * 3
    rest = NUM_FILES * ROWS - 3 * 51 * BATCH_ROWS
    assert max(len(rows) for rows in read[3:]) <= rest / more + 2 * ROWS
    assert sorted(row for rows in read for row in rows) == list(range(NUM_FILES * ROWS))
