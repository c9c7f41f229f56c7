from typing_extensions import Buffer

def hash_texts(data: Buffer, offsets: Buffer, hashes: Buffer, seed: int) -> None:
    """XXH64 of `data[offsets[i]:offsets[i + 1]]` into `hashes`: offsets int32 `(num_texts + 1,)`, hashes uint64."""

def hash_decimals(values: Buffer, hashes: Buffer, seed: int) -> None:
    """XXH64 of the shortest decimal text of each int64 into `hashes`, uint64 `(num_values,)`."""

def sign_rows(members: tuple[Buffer, ...], signs: Buffer, seed: int) -> None:
    """Each row's members (uint64 `(num_rows,)`) chained from `seed`, 63 bits, 0 as 1, into `signs`, uint64."""

def count_marks(values: Buffer, width: int) -> int:
    """How many of 2^18 bits the values of `width` bytes, 4 or 8, mark; see `featstore.table.distinct`."""

def mark_values(values: Buffer, width: int, bits: Buffer, bound: int, small: Buffer) -> tuple[int, int]:
    """Marks a slot's values (int64 signs, or float32) in `bits`, a byte each, and writes the hashes below `bound` to `small`,
    int64, with room for more than all; how many values are missing, and how many hashes were written."""
