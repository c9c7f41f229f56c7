"""The DeepFM: each part compared with plain loops, and the whole on a planted signal."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from featstore.base.schema import Slot, SlotKind
from featstore.tensors.columns import Jagged
from featstore.tools.demo_deepfm import (
    DeepFM,
    FloatEmbedding,
    IdEmbedding,
    bucket,
    pairwise,
    pool,
)

SMALL: dict[str, Any] = {"buckets": 16, "dim": 3, "hidden": (8,), "dropout": 0.0}
USER = Slot(name="user", kind=SlotKind.ID)
ITEM = Slot(name="item", kind=SlotKind.ID)
TAGS = Slot(name="tags", kind=SlotKind.ID, shape=(None,))
PAIR = Slot(name="pair", kind=SlotKind.ID, shape=(2,))
PRICE = Slot(name="price", kind=SlotKind.FLOAT)
DELAYS = Slot(name="delays", kind=SlotKind.FLOAT, shape=(None,))


def jagged(rows: list[list[float]], dtype: torch.dtype = torch.int64) -> Jagged:
    values = torch.tensor([value for row in rows for value in row], dtype=dtype)
    return Jagged(values, torch.tensor([0, *(len(row) for row in rows)]).cumsum(0))


def test_signs_fall_into_buckets_and_missing_has_its_own() -> None:
    signs = torch.tensor([0, 1, 15, 16, 2**63 - 1])
    assert bucket(signs, 16).tolist() == [0, 2, 1, 2, 1 + (2**63 - 1) % 15]


def test_ids_that_were_bucketed_by_the_loader_stay_distinct() -> None:
    assert sorted(bucket(torch.arange(16), 16).tolist()) == list(range(16))


def test_a_list_is_the_mean_of_its_elements_and_an_empty_one_is_zero() -> None:
    embedding = IdEmbedding([USER, TAGS, PAIR], buckets=16, dim=3)
    columns = {
        "user": torch.tensor([7, 0]),
        "tags": jagged([[3, 3, 9], []]),
        "pair": torch.tensor([[4, 5], [6, 6]]),
    }
    fields = embedding(columns)
    assert fields.shape == (2, 3, 4)

    def row(slot: int, sign: int) -> Tensor:
        return embedding.weight[slot * 16 + int(bucket(torch.tensor(sign), 16))]

    assert torch.equal(fields[:, 0], torch.stack([row(0, 7), row(0, 0)]))
    assert torch.allclose(fields[0, 1], (2 * row(1, 3) + row(1, 9)) / 3)
    assert torch.equal(fields[1, 1], torch.zeros(4))
    assert torch.allclose(fields[:, 2], torch.stack([(row(2, 4) + row(2, 5)) / 2, row(2, 6)]))


def test_pairwise_is_the_sum_of_products_of_all_pairs() -> None:
    vectors = torch.randn(5, 4, 3)
    pairs = [(vectors[:, i] * vectors[:, j]).sum(dim=1) for i in range(4) for j in range(i)]
    assert torch.allclose(pairwise(vectors), torch.stack(pairs).sum(dim=0), atol=1e-5)


def test_a_float_list_is_pooled_over_what_is_not_missing() -> None:
    mean, length = pool(jagged([[1.0, 3.0], [math.nan], [], [5.0, math.nan]], torch.float32))
    assert mean[[0, 3], 0].tolist() == [2.0, 5.0]
    assert mean[[1, 2], 0].isnan().all()
    assert torch.allclose(length[:, 0], torch.log1p(torch.tensor([2.0, 0.0, 0.0, 1.0])))


def test_floats_are_standardized_by_what_training_saw_and_missing_is_marked() -> None:
    floats = FloatEmbedding([PRICE, DELAYS], dim=3)
    prices = torch.tensor([1.0, 2.0, math.nan, 4.0, 9.0, math.nan])
    delays = jagged([[1.0], [2.0, 4.0], [], [0.0], [5.0], [7.0]], torch.float32)
    for rows in (slice(0, 2), slice(2, 6)):
        first, last = delays.offsets[rows.start], delays.offsets[rows.stop]
        part = Jagged(delays.values[first:last], delays.offsets[rows.start : rows.stop + 1] - first)
        floats({"price": prices[rows], "delays": part})
    floats.eval()
    inputs, vectors = floats({"price": prices, "delays": delays})
    seen = prices[~prices.isnan()]
    expected = torch.where(prices.isnan(), 0.0, (prices - seen.mean()) / seen.std(correction=0))
    assert torch.allclose(inputs[:, 0], expected, atol=1e-5)
    assert inputs[:, 3:].tolist() == [[float(i in (2, 5)), float(i == 2)] for i in range(6)]
    assert vectors.shape == (6, 5, 4)


@pytest.mark.parametrize(
    "slots", [[USER], [TAGS], [PRICE], [DELAYS], [USER, ITEM, TAGS, PRICE, DELAYS]], ids=str
)
def test_any_mix_of_slots_gives_one_logit_per_row_and_gradients(slots: list[Slot]) -> None:
    columns = {
        "user": torch.tensor([1, 0, 5]),
        "item": torch.tensor([2, 3, 2**62]),
        "tags": jagged([[1], [], [0]]),
        "price": torch.tensor([math.nan, 1.0, 2.0]),
        "delays": jagged([[1.0], [math.nan], []], torch.float32),
    }
    model = DeepFM(slots, **SMALL)
    logits = model(columns)
    assert logits.shape == (3,)
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_the_model_learns_that_two_ids_belong_together() -> None:
    torch.manual_seed(3)
    user, item = torch.randint(1, 9, (4000,)), torch.randint(1, 9, (4000,))
    label = (user % 2 == item % 2).float()
    model = DeepFM([USER, ITEM], **SMALL)
    optimizers = model.optimizers(lr=0.01, sparse_lr=0.02)
    for start in [*range(0, 4000, 200)] * 6:
        rows = slice(start, start + 200)
        logits = model({"user": user[rows], "item": item[rows]})
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, label[rows]).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    right = (model({"user": user, "item": item}) > 0) == (label > 0)
    assert right.float().mean() > 0.95
