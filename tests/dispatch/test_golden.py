"""The values in a store, the ids of splits and their order, byte for byte. A change here needs a
new format version.
"""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.dispatch import lease as leases
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.plan import Extent, Plan, Split
from featstore.dispatch.recording import RecordedWorker, Recording
from featstore.dispatch.store_keys import EpochKeys, run_prefix
from featstore.dispatch.stores.address import bind
from tests.dispatch.conftest import WholeClaims

GOLDEN = Path(__file__).parents[1] / "golden"
SPLITS = [
    Split(path="a.parquet", num_rows=7),
    Split(path="dt=2026-11-01/b#1.parquet", num_rows=5, first_row_group=0, last_row_group=3),
    Split(path="dt=2026-11-01/é.parquet", num_rows=0, first_row_group=4, last_row_group=4),
]


def store_keys() -> Any:
    prefix = run_prefix("run-1", restart=2, loader="train")
    keys = EpochKeys(prefix, 3)
    extent = Extent(split="a.parquet#0-", start_row=40, end=100)
    held = leases.claim(extent, worker="host:0", nonce="0123456789ab")
    started = leases.start(held, 3)
    begun = leases.reserve(started, 60, work=7, pace=250)
    records = {
        "claimed": held,
        "renewed": leases.renew(held, 3),
        "started": started,
        "reserved": begun,
        "acknowledged": leases.advance(begun, 50, 8),
        "reserved less": leases.reserve(leases.advance(begun, 50, 8), 55, 8, pace=50),
    }
    records |= {
        "free": leases.release(held),
        "done": leases.finish(leases.reserve(held, 100)),
        "cut": leases.cut(begun, 80),
    }
    records |= {"failed": leases.fail(begun), "quarantined": leases.quarantine(begun)}
    taken = leases.claim_again(
        leases.advance(begun, 50, 8), worker="é", nonce="ba9876543210", turn=5
    )
    records |= {
        "taken over": taken,
        "relieved": leases.claim_again(
            started, worker="v", nonce="ba9876543210", turn=5, relieves=True
        ),
        "claimed as nothing": leases.claim(
            replace(extent, start_row=0, end=0), worker="w", nonce="n"
        ),
    }
    late = leases.claim(extent, worker="pod-1-3fa2c1", nonce="n", index=3, turn=2**32)
    records |= {
        "of another index": late,
        "taken over from it": leases.claim_again(
            leases.advance(late, 50), worker="w", nonce="m", index=1
        ),
    }
    written = {"prefix": prefix, "plan": keys.plan, "cursor": keys.cursor, "split": keys.split(12)}
    written |= {
        "begun": keys.begun(3),
        "part": keys.part((12, 500)),
        "size": keys.size,
        "low": keys.low,
        "given back": keys.given_back,
        "gave back": keys.gave_back(3),
        "quarantined": keys.quarantined(2),
    }
    return {
        "format": leases.FORMAT,
        "keys": written,
        "leases": {name: record.encode() for name, record in records.items()},
    }


def recorded_order() -> Any:
    workers = (
        ("pod-1-3fa2c1", 0, [(0, 0, 40), (1, 0, 20)]),
        ("pod-1-09bc77", 0, [(4, 0, 40), (1, 20, 30)]),
        ("é", 2, [(2, 0, 40)]),
    )
    return Recording(
        plan=64 * "0",
        epoch=3,
        window_rows=10,
        workers=tuple(
            RecordedWorker(
                name=name,
                index=index,
                ranges=tuple(SplitRange(index=i, first=a, end=b) for i, a, b in ranges),
            )
            for name, index, ranges in workers
        ),
    )


def split_ids() -> Any:
    plans = {
        f"seed {s}, epoch {e}": Plan(splits=SPLITS, seed=s, epoch=e)
        for s, e in ((0, 0), (0, 1), (-1, 0), (2**64, 5))
    }
    plans["unshuffled"] = Plan(splits=SPLITS, shuffle=False)
    plans["sections of 2 and 1"] = Plan(splits=SPLITS, section_sizes=(2, 1))
    many = [Split(path=str(i), num_rows=1) for i in range(20)]
    orders = {
        f"seed {s}, epoch {e}": [int(x.path) for x in Plan(splits=many, seed=s, epoch=e)]
        for s, e in ((0, 0), (0, 1), (7, 0))
    }
    in_sections = Plan(splits=many, seed=7, epoch=1, section_sizes=(8, 1, 11))
    orders["seed 7, epoch 1, sections of 8, 1 and 11"] = [int(x.path) for x in in_sections]
    return {
        "format": 1,
        "ids": [split.id for split in SPLITS],
        "digests": {name: plan.digest for name, plan in plans.items()},
        "orders of 20 splits": orders,
    }


@pytest.mark.parametrize(("name", "make"), [("store_keys", store_keys), ("split_ids", split_ids)])
def test_stored_formats_have_not_changed(name: str, make: Any) -> None:
    assert make() == json.loads((GOLDEN / f"{name}.json").read_text())


def test_a_recorded_order_has_not_changed() -> None:
    text = (GOLDEN / "recorded_order.json").read_text()
    assert recorded_order().encode() == text
    assert Recording.from_json(json.loads(text)) == recorded_order()


def test_a_recorded_order_of_format_1_is_read_by_the_indices_and_numbers_in_its_names() -> None:
    found = Recording.from_json(json.loads((GOLDEN / "recorded_order_1.json").read_text()))
    assert (found.epoch, found.window_rows, found.num_workers) == (3, 10, 3)
    assert [(worker.name, worker.index) for worker in found.workers] == [
        ("0-9", 0),
        ("2-7", 2),
        ("0-10", 0),
    ]
    assert [(one.index, one.first, one.end) for one in found.of(0)] == [
        (0, 0, 40),
        (1, 0, 20),
        (4, 0, 40),
        (1, 20, 30),
    ]
    assert [list(found.of(index)) for index in (1, 2)] == [
        [],
        [SplitRange(index=2, first=0, end=40)],
    ]


def test_a_coordinator_writes_these_keys_and_no_other() -> None:
    address = bind(f"memory://{uuid.uuid4().hex}")
    keys = EpochKeys(run_prefix("run-1"), 0)
    with WholeClaims(
        address, plan=Plan(splits=SPLITS), prefix=keys.prefix, worker="w"
    ) as coordinator:
        assert all(coordinator.complete(claim) for claim in coordinator.claims())
    of_the_epoch = {
        keys.plan,
        keys.size,
        keys.cursor,
        keys.low,
        keys.begun(0),
        *(keys.split(i) for i in range(3)),
    }
    notes = {f"{keys.prefix}0/announced", "featstore/epochs", "featstore/epochs/1"}
    assert address.memory is not None
    assert set(address.memory.values) == of_the_epoch | notes
    assert (
        address.memory.values[keys.size]
        == '{"complete_before":[],"num_rows":12,"num_splits":3,"rows_before":0}'
    )
    assert address.memory.values[keys.plan] == f"{Plan(splits=SPLITS).digest}+e3b0c44298fc1c14"
