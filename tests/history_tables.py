"""Tables with a history, made by hand: the events of each key once in a row group, and for each row
what a row of its own would hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.column_ids import stored_schema
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.encoding import parquet_options
from featstore.histories.file_format import StoredHistory, list_columns
from featstore.table.delta import Change, commit
from featstore.table.layout import data_file_name, new_tag
from featstore.table.metadata import KEY, CommitMetadata, FileMetadata
from featstore.table.snapshot import DataFile, files_digest

ITEM = Slot(name="clicks_item", kind=SlotKind.ID, shape=(None,), number=301, op="hash")
PRICE = Slot(name="clicks_price", kind=SlotKind.FLOAT, shape=(None,), number=302, op="identity")
AGE = Slot(name="clicks_age", kind=SlotKind.FLOAT, shape=(None,), number=303, op="time_since")
HISTORY = StoredHistory(
    name="clicks",
    key="user_id",
    as_of="ts",
    at="event_ts",
    max_len=20,
    lists=(ITEM, PRICE),
    ages=((AGE, "minute"),),
)
US = 1_000_000
Damage = Callable[[int, dict[str, Any]], None]


@dataclass
class FatRows:
    """What each row should give, by slot; the key of each; and all items of each key."""

    item: list[list[int]] = field(default_factory=list)
    price: list[list[float]] = field(default_factory=list)
    age: list[list[float]] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    of_key: dict[int, set[int]] = field(default_factory=lambda: {0: set()})

    def columns(self) -> dict[str, list[list[Any]]]:
        return {"clicks_item": self.item, "clicks_price": self.price, "clicks_age": self.age}


def schema_of(history: StoredHistory = HISTORY) -> SlotSchema:
    return SlotSchema(
        slots=(
            Slot(name="row", kind=SlotKind.ID, number=101, op="identity"),
            Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=102, op="hash"),
        ),
        labels=(pa.field("click", pa.int64()),),
        kept=(pa.field("ts", pa.timestamp("us", "UTC")), *history.row_fields),
    )


def events_of(rng: np.random.Generator, history: StoredHistory, most: int) -> np.ndarray:
    """Events of one key in the order of known time: known, at, item (whole numbers)."""
    num = int(rng.integers(0, most + 1))
    at = rng.integers(0, 10_000, num) * US
    late = rng.integers(0, 5_000, num) * US * rng.integers(0, 2, num)
    known = at + late if history.logged_at else at
    order = np.lexsort((at, known))
    return np.stack([known, at, rng.integers(1, 1 << 62, num)], axis=1)[order]


def seen(events: np.ndarray, as_of: int, history: StoredHistory) -> tuple[int, int, list[int]]:
    """Where the events of a row begin and end, and which of them it has."""
    known, at = events[:, 0].tolist(), events[:, 1].tolist()
    end = sum(each < as_of for each in known)
    begin = max(0, end - history.max_len)
    if history.window_us is not None:
        while begin < end and at[begin] < as_of - history.window_us:
            begin += 1
    window = history.window_us or 1 << 62
    return begin, end, [i for i in range(begin, end) if at[i] >= as_of - window]


def row_group(
    rng: np.random.Generator,
    history: StoredHistory,
    events: Mapping[int, np.ndarray],
    num_rows: int,
    first_row: int,
    fat: FatRows,
) -> dict[str, Any]:
    """The columns of a row group by name, as arrays; lists are those of `list_columns`."""
    keys = rng.choice([0, *events], num_rows)  # 0: no key.
    as_of = np.sort(rng.integers(0, 12_000, num_rows)) * US
    begins, ends = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    for row, (key, time) in enumerate(zip(keys.tolist(), as_of.tolist(), strict=True)):
        has: list[int] = []
        if key:
            begins[row], ends[row], has = seen(events[key], time, history)
        own = events[key][has] if has else np.zeros((0, 3), np.int64)
        fat.keys.append(key)
        fat.item.append(own[:, 2].tolist())
        fat.price.append((own[:, 2] % 1000).astype(np.float32).tolist())
        fat.age.append(((time - own[:, 1]) / (60 * US)).astype(np.float32).tolist())
    holder_of = {key: int(np.flatnonzero(keys == key)[0]) for key in np.unique(keys).tolist()}
    holders = np.sort(np.array(list(holder_of.values()), np.int64))
    first = {key: int(begins[keys == key].min()) for key in holder_of}
    last = {key: int(ends[keys == key].max()) for key in holder_of}
    lists = [events[key][first[key] : last[key]] for key in keys[holders].tolist() if key]
    values = np.concatenate([np.zeros((0, 3), np.int64), *lists])
    lengths = np.array([last[key] - first[key] if key else 0 for key in keys[holders].tolist()])
    rows = np.arange(num_rows)
    starts = np.array([first[key] for key in keys.tolist()], np.int64)
    return {
        "row": np.arange(first_row, first_row + num_rows),
        "click": rng.integers(0, 2, num_rows),
        "ts": as_of,
        "clicks_end": (ends - starts).astype(np.int32),
        "clicks_length": (ends - begins).astype(np.int32),
        "clicks_back": (rows - [holder_of[key] for key in keys.tolist()]).astype(np.int32),
        "clicks_key": keys,
        "holders": holders,
        "lengths": lengths,
        "values": {
            "clicks_item": values[:, 2],
            "clicks_price": (values[:, 2] % 1000).astype(np.float32),
            "clicks_at": values[:, 1],
        },
    }


def arrow_of(columns: Mapping[str, Any], history: StoredHistory) -> pa.Table:
    """A row group as data files hold it: with columns that the table's schema lacks."""
    num_rows = len(columns["row"])
    lists = list_columns(
        history, columns["holders"], columns["lengths"], columns["values"], num_rows
    )
    tags = [[row + 1] * (row % 3) for row in columns["row"].tolist()]
    fields = [*schema_of(history).to_arrow(), *history.hidden_fields]
    found = {**columns, **lists, "tags": tags}
    arrays = [
        found[each.name] if isinstance(found[each.name], pa.Array)
        else pa.array(found[each.name], each.type)
        for each in fields
    ]  # fmt: skip
    schema = stored_schema(pa.schema(fields))
    metadata = FileMetadata(spec_hash="s1", spec_version=1, cluster_by=history.key)
    schema = schema.with_metadata({KEY: metadata.to_json()})
    casts = [array.cast(each.type) for array, each in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(casts, schema=schema)


def write_groups(path: Path, groups: Sequence[pa.Table], history: StoredHistory = HISTORY) -> None:
    options = parquet_options(groups[0])
    dictionary = set(options["use_dictionary"]) - set(history.encodings)
    options |= {
        "use_dictionary": sorted(dictionary),
        "column_encoding": options["column_encoding"] | dict(history.encodings),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, groups[0].schema, **options) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))


def make_table(
    root: Path, seed: int, files: Sequence[Sequence[int]], history: StoredHistory = HISTORY
) -> FatRows:
    """Writes and commits a table, as of `write_files`."""
    fat, written = write_files(root, seed, files, history)
    commit(str(root), change(history, written))
    return fat


def write_files(
    root: Path,
    seed: int,
    files: Sequence[Sequence[int]],
    history: StoredHistory = HISTORY,
    damage: Damage = lambda number, columns: None,
    num_keys: int = 5,
) -> tuple[FatRows, list[DataFile]]:
    """Writes data files of a table.

    Args:
        root: Its directory.
        seed: Of its values.
        files: How many rows each row group of each file has.
        history: What the table says of its history.
        damage: Called with each row group's number in the table, and its columns.
        num_keys: How many keys there are.
    """
    rng, fat, written, first_row, number = np.random.default_rng(seed), FatRows(), [], 0, 0
    events = {key: events_of(rng, history, 60) for key in range(1, num_keys + 1)}
    fat.of_key |= {key: set(of_key[:, 2].tolist()) for key, of_key in events.items()}
    for place, sizes in enumerate(files):
        groups = []
        for num_rows in sizes:
            columns = row_group(rng, history, events, num_rows, first_row, fat)
            damage(number, columns)
            groups.append(arrow_of(columns, history))
            first_row, number = first_row + num_rows, number + 1
        path = data_file_name(new_tag("r1"), place, 0)
        write_groups(root / path, groups, history)
        written.append(
            DataFile(
                path=path,
                url=str(root / path),
                size_bytes=(root / path).stat().st_size,
                num_rows=sum(sizes),
                partition={},
            )
        )
    return fat, written


def change(history: StoredHistory, files: Sequence[DataFile]) -> Change:
    metadata = CommitMetadata(
        run_id="r1",
        spec_hash="s1",
        spec_version=1,
        input_digest="i1",
        data_digest=files_digest(files),
        partitions=({},),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
    return Change(
        base=None,
        schema=replace(schema_of(history), partition_keys=()),
        partitions=({},),
        files=tuple(files),
        metadata=metadata,
    )
