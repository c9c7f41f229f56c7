"""Batches as numpy arrays, for numpy, JAX and others: what `FeatureLoader.numpy()` returns."""

from collections.abc import Iterable, Iterator

from featstore.tensors.batch import Batch
from featstore.tensors.numpy_batch import NumpyBatch, numpy_batch


class NumpyFeed:
    """Iterates like its source, with arrays in place of tensors. Nothing is copied, and the state
    of a loader follows the loop. An iteration begins with its first batch.

    Args:
        source: A loader, or a DataLoader over one.
    """

    def __init__(self, source: Iterable[Batch]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[NumpyBatch]:
        for batch in self._source:
            yield numpy_batch(batch)
