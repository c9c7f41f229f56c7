import os
import pickle
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
)

import featstore
from featstore.base.errors import (
    ConfigError,
    SampleError,
    SampleIndexError,
    SampleStoreError,
    UnknownSampleError,
)
from featstore.samples.sample_store import SampleStore
from tests.forks import in_a_fork
from tests.programs import Program, run_python

NUM_SAMPLES = 300
APPEND = """
import sys, featstore
store = featstore.SampleStore(sys.argv[1])
sys.stdin.readline()
for part in range(10):
    numbers = range(part * 50, part * 50 + 50)
    samples = ({"text": "a", "image": b"", "meta": []} for _ in numbers)
    store.append(samples, ids=(f"{sys.argv[2]}-{number}" for number in numbers))
"""


def sample(index: int) -> dict[str, Any]:
    return {"text": f"text {index}", "image": bytes([index % 256]) * (index % 7), "meta": [index]}


def upper(found: dict[str, Any]) -> str:
    return str(found["text"]).upper()


def number(found: dict[str, Any]) -> int:
    return int(found["meta"][0])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SampleStore]:
    kinds = {"text": "text", "image": "bytes", "meta": "json"}
    with SampleStore.create(tmp_path / "samples.sqlite", kinds) as made:
        made.append(map(sample, range(NUM_SAMPLES)), ids=(f"id{i}" for i in range(NUM_SAMPLES)))
        yield made


def test_samples_come_back_by_index_slice_and_list(store: SampleStore) -> None:
    assert len(store) == NUM_SAMPLES
    assert store[0] == sample(0)
    assert store[-1] == sample(NUM_SAMPLES - 1)
    assert store[np.int64(5)] == sample(5)
    assert store[10:20] == [sample(i) for i in range(10, 20)]
    assert store[::-100] == [sample(i) for i in (299, 199, 99)]
    assert store[[7, 3, 7, -1]] == [sample(i) for i in (7, 3, 7, 299)]
    assert store[np.array([2, 1])] == store.__getitems__([2, 1]) == [sample(2), sample(1)]
    assert store[[]] == store[5:5] == []
    assert list(store) == [sample(i) for i in range(NUM_SAMPLES)]
    assert store.fields == {"text": "text", "image": "bytes", "meta": "json"}
    assert repr(store) == f"SampleStore('{store.path}', 300 samples of text, image, meta)"


def test_samples_come_back_by_id(store: SampleStore) -> None:
    assert store.by_id(["id7", "id3", "id7"]) == [sample(7), sample(3), sample(7)]
    assert store.by_id([]) == []
    with pytest.raises(UnknownSampleError, match=r"no sample has id 'x', 'y', 'z' and others; ref"):
        store.by_id(["x", "id1", "y", "z", "w"])
    with pytest.raises(KeyError):
        store.by_id(["x"])


def test_ids_are_a_sequence(store: SampleStore) -> None:
    ids = store.ids
    assert len(ids) == NUM_SAMPLES
    assert (ids[0], ids[-1]) == ("id0", "id299")
    assert ids[5:8] == ["id5", "id6", "id7"]
    assert ids[[9, 2]] == ["id9", "id2"]
    assert list(ids) == [f"id{i}" for i in range(NUM_SAMPLES)]
    assert "id7" in ids
    assert "x" not in ids


def test_samples_without_ids_have_none(tmp_path: Path) -> None:
    with SampleStore.create(tmp_path / "x", {"text": "text"}) as store:
        assert store.append([{"text": "a"}, {"text": "b"}]) == 2
        store.append([{"text": "c"}], ids=[5])
        assert list(store.ids) == [None, None, "5"]
        assert store.by_id([5]) == store.by_id(["5"]) == [{"text": "c"}]


@pytest.mark.parametrize("index", [NUM_SAMPLES, -NUM_SAMPLES - 1])
def test_an_index_out_of_range_is_an_index_error(store: SampleStore, index: int) -> None:
    for indices in (index, [0, index]):
        with pytest.raises(SampleIndexError, match=rf"index {index} is out of range"):
            store[indices]


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_data_loader_workers_read_what_the_parent_would(store: SampleStore, method: str) -> None:
    numbers = SampleStore(store.path, transform=number)
    assert numbers[3] == 3  # The parent's connection is open.
    loader: Any = DataLoader(
        numbers,  # type: ignore[arg-type]
        batch_size=32,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        assert [one for batch in loader for one in batch.tolist()] == list(range(NUM_SAMPLES))
    del loader


def samplers() -> dict[str, Any]:
    order = featstore.RandomOrder(NUM_SAMPLES, seed=1)
    everything = range(NUM_SAMPLES)
    return {
        "random": {"sampler": RandomSampler(everything), "batch_size": 16},
        "batches": {"batch_sampler": BatchSampler(RandomSampler(everything), 16, drop_last=False)},
        "distributed": {
            "sampler": DistributedSampler(everything, num_replicas=1, rank=0),  # type: ignore[arg-type]
            "batch_size": 16,
        },
        "order": {"sampler": order, "batch_size": 16},
        "batches of an order": {"batch_sampler": order.batches(16)},
        "rows of an order": {"sampler": order.rows(), "batch_size": 16},
    }


@pytest.mark.parametrize("kind", samplers())
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sampler_delivers_every_sample_once(
    store: SampleStore, kind: str, num_workers: int
) -> None:
    numbers: Any = SampleStore(store.path, transform=number)
    loader: Any = DataLoader(numbers, num_workers=num_workers, **samplers()[kind])
    found = [one for batch in loader for one in batch.tolist()]
    assert sorted(found) == list(range(NUM_SAMPLES))
    assert found != sorted(found)


def test_weighted_samplers_draw_what_has_a_weight(store: SampleStore) -> None:
    numbers: Any = SampleStore(store.path, transform=number)
    weights = [0.0] * (NUM_SAMPLES - 2) + [1.0, 1.0]
    order = featstore.RandomOrder(NUM_SAMPLES, weights=weights, num_draws=50)
    for sampler in (WeightedRandomSampler(weights, 50), order):
        loader: Any = DataLoader(numbers, sampler=sampler, batch_size=8)
        assert {one for batch in loader for one in batch.tolist()} == {298, 299}


def test_a_fork_with_an_open_store_reads_in_both_processes(store: SampleStore) -> None:
    assert store[0] == sample(0)

    def child() -> bool:
        inherited = num_open(store.path)
        return inherited > 0 or store[[5, 1]] != [sample(5), sample(1)]

    assert num_open(store.path) > 0
    assert in_a_fork(child) == 0
    assert store[[5, 1]] == [sample(5), sample(1)]


def num_open(path: Path) -> int:
    """How many open files this process has that belong to a store."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.exists())
    return sum(str(link.readlink()).startswith(str(path)) for link in links)


def test_a_fork_in_the_middle_of_an_append_loses_nothing(store: SampleStore) -> None:
    """The samples come from a generator that forks, while the writer's connection is open."""

    def forking() -> Iterator[dict[str, Any]]:
        for index in range(25_000):
            if index in (5_000, 15_000):
                assert in_a_fork(lambda: store[1] != sample(1)) == 0
            yield sample(index)

    store.append(forking())
    assert len(store) == NUM_SAMPLES + 25_000
    assert store[-1] == sample(24_999)
    store.check()


def test_threads_take_turns(store: SampleStore) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        indices = np.random.default_rng(seed).integers(0, NUM_SAMPLES, 50)
        for _ in range(20):
            wrong.extend([1] * (store[indices] != [sample(int(i)) for i in indices]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_pickled_store_is_opened_again_from_its_path(store: SampleStore) -> None:
    copied = pickle.loads(pickle.dumps(SampleStore(store.path, transform=upper)))
    assert copied[[1, 0]] == ["TEXT 1", "TEXT 0"]
    copied.close()


def test_a_reader_sees_what_others_append_once_it_asks(store: SampleStore) -> None:
    reader = SampleStore(store.path)
    store.append([sample(300)], ids=["id300"])
    assert len(store) == 301
    assert len(reader) == 300
    assert reader[-1] == sample(299)
    with pytest.raises(UnknownSampleError, match="refresh"):
        reader.by_id(["id300"])
    assert not reader.has_id("id300")
    reader.refresh()
    assert reader[-1] == sample(300)
    assert reader.by_id(["id300"]) == [sample(300)]


@settings(max_examples=20)  # Each transaction waits for the disk.
@given(data=st.data(), num_samples=st.integers(1, 30))
def test_indices_stay_dense_when_samples_are_deleted(
    data: st.DataObject, num_samples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with SampleStore.create(tmp_path_factory.mktemp("s") / "x", {"number": "integer"}) as store:
        store.append(({"number": i} for i in range(num_samples)), ids=map(str, range(num_samples)))
        left = list(range(num_samples))
        for _ in range(3):
            gone = data.draw(st.lists(st.integers(0, len(left) - 1), max_size=8)) if left else []
            store.delete(gone)
            rest = sorted(set(left) - {left[index] for index in gone})
            # Who is not moved stays where it was.
            found = [one["number"] for one in store]
            kept = {i: one for i, one in enumerate(left) if i < len(rest) and i not in gone}
            assert {index: found[index] for index in kept} == kept
            assert sorted(found) == rest
            assert list(store.ids) == [str(one) for one in found]
            left = found
        store.check()


def test_the_space_of_deleted_samples_is_used_again(tmp_path: Path) -> None:
    with SampleStore.create(tmp_path / "x", {"image": "bytes"}) as store:
        store.append({"image": os.urandom(5_000)} for _ in range(500))
        store.close()
        size = store.path.stat().st_size
    store = SampleStore(store.path)
    for _ in range(5):
        store.delete(range(400))
        store.append({"image": os.urandom(5_000)} for _ in range(400))
    store.close()
    assert store.path.stat().st_size < 1.2 * size


def test_after_a_delete_other_readers_raise_until_they_look_again(store: SampleStore) -> None:
    reader = SampleStore(store.path)
    indices = SampleStore(store.path)
    store.delete([3, 299])
    assert (len(store), store[3]) == (298, sample(298))
    for read in (lambda: reader[5], lambda: reader[[5]], lambda: reader.by_id(["id5"])):
        with pytest.raises(SampleStoreError, match=r"samples were deleted.*call refresh\(\)"):
            read()
    with pytest.raises(SampleStoreError, match="samples were deleted"):
        reader[299]  # It is not there any more.
    with pytest.raises(SampleStoreError, match="samples were deleted"):
        indices.delete([1])
    with pytest.raises(SampleStoreError, match="samples were deleted"):
        reader.has_id("id5")
    with pytest.raises(SampleStoreError, match="samples were deleted"):
        "id5" in reader.ids  # noqa: B015
    reader.refresh()
    assert reader[3] == sample(298)
    with pytest.raises(UnknownSampleError):
        reader.by_id(["id3"])


def test_appending_after_others_deleted_stores_the_samples_and_reading_tells(
    store: SampleStore,
) -> None:
    other = SampleStore(store.path)
    store.delete([0])
    assert other.append([sample(1000)]) == 1
    with pytest.raises(SampleStoreError, match="samples were deleted"):
        other[0]
    other.refresh()
    assert other[-1] == sample(1000)


def test_another_file_in_the_place_of_a_store_is_noticed_by_workers(
    store: SampleStore, tmp_path: Path
) -> None:
    copied = pickle.dumps(store)
    store.close()
    store.path.unlink()
    with SampleStore.create(store.path, store.fields) as other:
        other.append(map(sample, range(NUM_SAMPLES, 0, -1)))
    with pytest.raises(SampleStoreError, match="or the file was replaced"):
        pickle.loads(copied)[0]


@pytest.fixture
def replaced(tmp_path: Path) -> tuple[SampleStore, SampleStore]:
    """A store that was opened, read, and then replaced by one with its fields in another order, and
    the other one.
    """
    path = tmp_path / "r.sqlite"
    with SampleStore.create(path, {"title": "text", "body": "text"}) as store:
        store.append([{"title": "T", "body": "B"}] * 3)
    opened = SampleStore(path)
    assert opened[0] == {"title": "T", "body": "B"}
    other = SampleStore.create(tmp_path / "other.sqlite", {"body": "text", "title": "text"})
    other.append([{"title": "T2", "body": "B2"}] * 5)
    other.close()
    other.path.replace(path)
    return opened, SampleStore(path)


def test_a_store_that_was_replaced_is_the_new_one_after_refresh(
    replaced: tuple[SampleStore, SampleStore],
) -> None:
    opened, _ = replaced
    assert opened[0] == {"title": "T", "body": "B"}  # The old file is open.
    opened.refresh()
    assert list(opened.fields) == ["body", "title"]
    assert list(opened) == [{"title": "T2", "body": "B2"}] * 5


def test_after_a_fork_a_store_that_was_replaced_raises_until_refresh(
    replaced: tuple[SampleStore, SampleStore],
) -> None:
    opened, _ = replaced
    assert in_a_fork(lambda: False) == 0
    with pytest.raises(SampleStoreError, match="or the file was replaced"):
        opened[0]
    opened.refresh()
    assert opened[0] == {"title": "T2", "body": "B2"}


def test_nothing_is_added_to_a_store_that_was_replaced_by_one_of_other_fields(
    replaced: tuple[SampleStore, SampleStore],
) -> None:
    opened, other = replaced  # Its writing connection is opened only now.
    with pytest.raises(SampleStoreError, match="or the file was replaced"):
        opened.append([{"title": "T3", "body": "B3"}])
    other.refresh()
    assert len(other) == 5
    opened.refresh()
    opened.append([{"title": "T3", "body": "B3"}])
    assert opened[-1] == {"title": "T3", "body": "B3"}


@pytest.mark.parametrize("ids", [["a", "b", "a"], ["a", "id7", "b"]])
def test_an_id_that_is_taken_is_named_and_nothing_of_the_transaction_stored(
    store: SampleStore, ids: list[str]
) -> None:
    taken = "a" if ids.count("a") > 1 else "id7"
    with pytest.raises(SampleError, match=rf"id '{taken}' is taken: .*the first 0 of those given"):
        store.append(map(sample, range(3)), ids=ids)
    assert len(store) == NUM_SAMPLES
    assert not store.has_id("b")


def test_a_sample_that_cannot_be_stored_is_counted_and_what_came_before_is_kept(
    store: SampleStore,
) -> None:
    def given() -> Iterator[dict[str, Any]]:
        yield from map(sample, range(12_000))
        yield {"txt": "a"}

    with pytest.raises(
        SampleError,
        match=r"sample 12000 of those given: unknown field 'txt' \(did you mean 'text'\?\).*; the "
        r"first 10000 are stored",
    ):
        store.append(given())
    assert len(store) == NUM_SAMPLES + 10_000
    store.check()


def test_fewer_ids_than_samples_are_refused(store: SampleStore) -> None:
    with pytest.raises(SampleError, match=r"sample 1 of .*as many ids as samples, found fewer ids"):
        store.append([sample(0), sample(1)], ids=["a"])
    with pytest.raises(SampleError, match="found fewer samples"):
        store.append([sample(0)], ids=["a", "b"])
    assert len(store) == NUM_SAMPLES


def test_a_delete_of_nothing_disturbs_nobody(store: SampleStore) -> None:
    reader = SampleStore(store.path)
    store.delete([])
    assert reader[5] == sample(5)


def test_values_of_users_are_bound_and_never_part_of_a_statement(tmp_path: Path) -> None:
    hostile = "x'); DROP TABLE samples; --"
    with SampleStore.create(tmp_path / "x'; y?.sqlite", {hostile: "text", "*": "json"}) as store:
        store.append([{hostile: hostile, "*": [hostile]}], ids=[hostile])
        assert store[0] == {hostile: hostile, "*": [hostile]}
        assert store.by_id([hostile]) == [store[0]]
        with pytest.raises(UnknownSampleError):
            store.by_id(["' OR 1=1 --"])
        store.check()


def test_a_closed_store_says_so(store: SampleStore) -> None:
    store.close()
    for use in (lambda: store[0], lambda: store.append([sample(0)]), store.refresh):
        with pytest.raises(SampleStoreError, match="is closed"):
            use()


def test_a_sample_or_a_batch_is_one_statement(store: SampleStore) -> None:
    statements: list[str] = []
    with store._reader.use() as connection:
        connection.set_trace_callback(statements.append)
    assert store[5] == sample(5)
    assert len(store[list(range(200))]) == 200
    assert len(store.by_id([f"id{i}" for i in range(200)])) == 200
    assert len(statements) == 3


def test_a_sample_takes_few_calls(store: SampleStore) -> None:
    """SQLite needs as long for a sample as Python for some tens of calls."""
    assert store[5] == sample(5)  # The statement is compiled.
    events: list[str] = []
    sys.setprofile(lambda frame, event, function: events.append(event))
    store[5]
    sys.setprofile(None)
    assert events.count("call") <= 15
    assert events.count("c_call") <= 25


def test_ids_are_found_by_an_index(store: SampleStore) -> None:
    connection = sqlite3.connect(store.path)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {store._reader._by_id}", ("[]", 0)).fetchall()
    connection.close()
    assert any("USING INDEX ids (id=?)" in row[3] for row in plan)


def test_fields_of_no_kind_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a kind of"):
        SampleStore.create(tmp_path / "x", {"a": "string"})
    assert list(tmp_path.iterdir()) == []


def test_several_processes_append_at_once(store: SampleStore) -> None:
    writers = [Program(APPEND, store.path, number) for number in range(3)]
    for writer in writers:
        writer.result("\n")
    store.refresh()
    assert len(store) == NUM_SAMPLES + 3 * 500
    store.check()
    assert all(store.has_id(f"{i}-{j}") for i in range(3) for j in range(0, 500, 50))


def test_a_store_in_use_loads_no_torch(store: SampleStore) -> None:
    use = (
        "import sys, featstore; featstore.SampleStore(sys.argv[1])[[1, 0]];"
        "print('torch' in sys.modules)"
    )
    assert run_python(use, store.path).stdout.strip() == "False"
