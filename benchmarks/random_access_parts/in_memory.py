"""Rows in memory: mapped from a file of numpy, as a tensor, or as Python objects."""

from pathlib import Path

import numpy as np
import torch

from featstore.samples.indices import Array
from random_access_parts.rows import NUM_SLOTS, Rows


class NumpyGather:
    """The floor: the rows as one matrix in a memory-mapped file, gathered by numpy."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path, self._shape = directory / "rows.bin", (rows.num_rows, NUM_SLOTS)
        with self._path.open("wb") as file:
            for block in rows.blocks():
                file.write(block.tobytes())

    def open(self) -> "_Matrix":
        return _Matrix(np.memmap(self._path, np.int64, mode="r", shape=self._shape))

    def close(self) -> None:
        pass


class SharedTensor:
    """A tensor that the parent holds and that forked workers share."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._tensor = torch.empty((rows.num_rows, NUM_SLOTS), dtype=torch.int64)
        first = 0
        for block in rows.blocks():
            self._tensor[first : first + len(block)] = torch.from_numpy(block)
            first += len(block)

    def open(self) -> "_Tensor":
        return _Tensor(self._tensor)

    def close(self) -> None:
        pass


class PythonList:
    """A list of a tuple of Python integers for each row, which each worker holds for itself."""

    is_in_each_worker = True

    def make(self, rows: Rows, directory: Path) -> None:
        self._rows = rows

    def open(self) -> "_List":
        # Row by row: large temporary lists would leave holes in the heap, which count as memory.
        return _List([tuple(row.tolist()) for block in self._rows.blocks() for row in block])

    def close(self) -> None:
        pass


class _Matrix:
    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix

    def take(self, indices: Array) -> Array:
        return np.asarray(self._matrix[indices])


class _Tensor:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def take(self, indices: Array) -> Array:
        return self._tensor[torch.from_numpy(indices)].numpy()


class _List:
    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self._rows = rows

    def take(self, indices: Array) -> Array:
        return np.array([self._rows[index] for index in indices.tolist()], np.int64)
