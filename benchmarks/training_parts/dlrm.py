"""A small DLRM in plain torch, and an epoch of it over the batches of any reader."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

BUCKETS, WIDTH = 20_000, 16
_BOTTOM, _TOP, _LEARNING_RATE = 64, (256, 64), 0.05


class Inputs(NamedTuple):
    """A batch as the model takes it.

    Attributes:
        ids: One int64 [B] a slot, in `[0, BUCKETS)`.
        lists: Values, int64 (num_values,) in `[0, BUCKETS)`, and offsets, int64 (B + 1,), a slot.
        floats: float32 [B, number of float slots], missing values NaN.
        label: float32 [B].
    """

    ids: list[torch.Tensor]
    lists: list[tuple[torch.Tensor, torch.Tensor]]
    floats: torch.Tensor
    label: torch.Tensor


class Dlrm(nn.Module):
    """Embeddings of ids, their sums of lists, a bottom of the floats, dot products of all pairs of
    vectors, and a top.
    """

    def __init__(self, *, num_ids: int, num_lists: int, num_floats: int) -> None:
        super().__init__()
        self.ids = nn.ModuleList(nn.Embedding(BUCKETS, WIDTH, sparse=True) for _ in range(num_ids))
        self.lists = nn.ModuleList(
            nn.EmbeddingBag(BUCKETS, WIDTH, mode="sum", sparse=True, include_last_offset=True)
            for _ in range(num_lists)
        )
        for table in (*self.ids, *self.lists):
            nn.init.normal_(table.weight, std=0.05)
        self.bottom = nn.Sequential(
            nn.Linear(num_floats, _BOTTOM), nn.ReLU(), nn.Linear(_BOTTOM, WIDTH)
        )
        num_vectors = num_ids + num_lists + 1
        self.register_buffer("pairs", torch.triu_indices(num_vectors, num_vectors, 1))
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.top = nn.Sequential(
            nn.Linear(num_pairs + WIDTH, _TOP[0]),
            nn.ReLU(),
            nn.Linear(_TOP[0], _TOP[1]),
            nn.ReLU(),
            nn.Linear(_TOP[1], 1),
        )

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Logits, float32 [B]."""
        dense = self.bottom(inputs.floats.nan_to_num())
        vectors = [dense]
        vectors += [table(ids) for table, ids in zip(self.ids, inputs.ids, strict=True)]
        vectors += [bag(*of) for bag, of in zip(self.lists, inputs.lists, strict=True)]
        stacked = torch.stack(vectors, 1)
        dots = (stacked @ stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        logits: torch.Tensor = self.top(torch.cat([dense, dots], 1))
        return logits.squeeze(1)


class Epoch(NamedTuple):
    """What an epoch took, and what came out.

    Attributes:
        epoch_s: From before the reader is made to the end of the last step.
        waited_s: The part of it in which the training thread waited for a batch.
        first_s: The part of that until the first batch came.
        cpu_s: CPU seconds of all threads of the process in this time.
        num_rows: Rows trained on.
        num_batches: Steps.
        loss: The mean loss of the last quarter of the rows; NaN where there were none.
    """

    epoch_s: float
    waited_s: float
    first_s: float
    cpu_s: float
    num_rows: int
    num_batches: int
    loss: float


def train(
    model: Dlrm, read: Callable[[], Iterator[Inputs]], num_rows: int, slowdown: float = 1.0
) -> Epoch:
    """Trains over the batches that `read` gives, and counts `num_rows` of them as the whole. A
    step takes `slowdown` times as long as it takes, the rest asleep.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    losses, num_batches, done_rows, waits_s = [], 0, 0, list[float]()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    batches = read()
    while True:
        asked_s = time.perf_counter()
        inputs = next(batches, None)
        waits_s.append(time.perf_counter() - asked_s)
        if inputs is None:
            break
        step_s = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), inputs.label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        num_batches, done_rows = num_batches + 1, done_rows + len(inputs.label)
        if done_rows > num_rows * 3 // 4:
            losses.append(loss.item())
        time.sleep((slowdown - 1) * (time.perf_counter() - step_s))
    return Epoch(
        epoch_s=time.perf_counter() - began_s,
        waited_s=sum(waits_s),
        first_s=waits_s[0],
        cpu_s=time.process_time() - began_cpu_s,
        num_rows=done_rows,
        num_batches=num_batches,
        loss=sum(losses) / len(losses) if losses else math.nan,
    )
