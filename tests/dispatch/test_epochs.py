"""Notes of epochs: which ones a store holds, and what an observer learns from them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.epochs import EpochNote, announce, announced, announced_in_run
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import EpochKeys, run_prefix
from featstore.dispatch.stores.base import Store
from featstore.dispatch.terms import Terms

NOTE = EpochNote(
    prefix=run_prefix("run", restart=2, loader="train-4"),
    epoch=3,
    num_splits=10,
    num_rows=1000,
    lease_s=10.0,
    started_unix_s=0.0,
)


def test_only_the_first_worker_of_an_epoch_leaves_a_note(store: Store) -> None:
    assert announce(store, NOTE)
    assert not announce(store, replace(NOTE, started_unix_s=9.0))
    assert list(announced(store)) == [NOTE]


def test_epochs_of_one_loader_and_of_other_loaders_have_notes_of_their_own(store: Store) -> None:
    other = replace(NOTE, prefix=run_prefix("run", loader="eval"))
    assert announce(store, NOTE)
    assert announce(store, replace(NOTE, epoch=4))
    assert announce(store, other)
    assert list(announced(store)) == [NOTE, replace(NOTE, epoch=4), other]


@pytest.mark.parametrize(("last", "epochs"), [(None, [0, 1, 2]), (2, [1, 2]), (9, [0, 1, 2])])
def test_the_last_epochs_are_listed_oldest_first(
    store: Store, last: int | None, epochs: list[int]
) -> None:
    for epoch in range(3):
        announce(store, replace(NOTE, epoch=epoch))
    assert [note.epoch for note in announced(store, last)] == epochs


@pytest.mark.parametrize(("last", "epochs"), [(None, [0, 1]), (2, [0, 1]), (1, [1])])
def test_a_note_that_was_counted_and_not_written_hides_no_other(
    store: Store, last: int | None, epochs: list[int]
) -> None:
    for epoch in range(2):
        announce(store, replace(NOTE, epoch=epoch))
        store.add("featstore/epochs", 1)
    assert [note.epoch for note in announced(store, last)] == epochs


def test_the_epochs_of_a_run_are_those_of_all_its_loaders_and_of_no_other_run(
    store: Store,
) -> None:
    other = replace(NOTE, prefix=run_prefix("run-2"))
    evaluation = replace(NOTE, prefix=run_prefix("run", loader="eval"), epoch=4)
    for note in (NOTE, other, evaluation):
        announce(store, note)
    assert list(announced_in_run(store, "run")) == [NOTE, evaluation]
    assert list(announced_in_run(store, "run", 4)) == [evaluation]
    assert list(announced_in_run(store, "ru")) == []


def test_an_empty_store_has_no_epochs(store: Store) -> None:
    assert list(announced(store)) == list(announced(store, last=5)) == []


def test_an_epoch_whose_first_worker_died_before_writing_its_note_is_skipped(store: Store) -> None:
    announce(store, NOTE)
    store.add("featstore/epochs", 1)  # A worker raised the count, and died.
    announce(store, replace(NOTE, epoch=4))
    assert [note.epoch for note in announced(store)] == [3, 4]


def test_a_note_counts_only_completed_splits_as_done_before() -> None:
    plan = Plan(splits=[Split(path=f"{i}", num_rows=10 * i) for i in range(5)], shuffle=False)
    done: Any = {1: "complete", 3: "complete", 4: 25, 2: ((5, 10),)}
    keys = EpochKeys(NOTE.prefix, 0)
    note = EpochNote.of(keys, plan, done, terms=Terms(reserve_s=20), started_unix_s=1.0)
    assert (note.num_splits, note.num_rows) == (5, 100)
    assert (note.num_splits_before, note.num_rows_before) == (2, 40)
    assert note.keys == keys
    assert (note.lease_s, note.report_s) == (60, 15)


def test_a_note_names_its_epoch_and_its_loader_without_the_iteration() -> None:
    assert NOTE.name == "run/2/train-4 epoch 3"
    assert NOTE.loader == "train"
    assert replace(NOTE, prefix=run_prefix("run", loader="eval")).loader == "eval"


def test_a_note_round_trips_through_the_store() -> None:
    assert EpochNote.decode(NOTE.encode()) == NOTE


def test_a_note_without_the_time_between_two_acknowledgements_is_read() -> None:
    fields = json.loads(NOTE.encode())
    del fields["report_s"]
    assert EpochNote.decode(json.dumps(fields)).report_s == 1.5


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"format":1}', json.dumps(json.loads(NOTE.encode()) | {"format": 2})],
)
def test_a_note_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(
        DispatchError,
        match="a note of an epoch that this version cannot read: expected format 1, found",
    ):
        EpochNote.decode(text)
