"""A Deep Interest Network over jagged lists, in plain torch.

After Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018: each event
of a user's history gets a weight, which a small network computes from the event and the candidate,
and the weighted sum of the events is the user's interest in the candidate.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from featstore import Batch, Jagged


class Attention(nn.Module):
    """The weighted sum of each row's events. Weights are not normalized, as in the paper: a user
    with many events like the candidate has a stronger interest in it.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Sequential(
            nn.Linear(3 * dim + 1, hidden), nn.PReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, candidates: Tensor, events: Tensor, ages: Tensor, offsets: Tensor) -> Tensor:
        """Nothing is padded: all events of the batch lie in one tensor.

        Args:
            candidates: float32 (num_rows, dim).
            events: float32 (num_events, dim); row i has `events[offsets[i]:offsets[i + 1]]`.
            ages: float32 (num_events,), hours.
            offsets: int64 (num_rows + 1,).

        Returns:
            float32 (num_rows, dim), zeros where a row has no events.
        """
        # With a known size nobody waits for a GPU to tell it.
        of_row = candidates.repeat_interleave(offsets.diff(), dim=0, output_size=len(events))
        inputs = [events, of_row, events * of_row, ages.log1p()[:, None]]
        weighted = self.weight(torch.cat(inputs, dim=1)) * events
        # `sum(dim=1)` of a nested tensor would pad it. `unsafe` leaves out a check of the offsets,
        # for which a GPU would have to be waited for.
        return torch.segment_reduce(weighted, "sum", offsets=offsets, axis=0, unsafe=True)


class Din(nn.Module):
    """Logits of clicks, from the user, the candidate and, unless it is left out, the history.

    Args:
        buckets: How many embeddings `user`, `item` and `category` have.
        dim: Numbers of an embedding.
        hidden: Units of the hidden layers.
        with_history: False leaves out the history, to see what it is worth.
    """

    def __init__(
        self, buckets: Mapping[str, int], dim: int = 8, hidden: int = 32, with_history: bool = True
    ) -> None:
        super().__init__()
        # Index 0 is a missing value, and stays zero.
        self.user = nn.Embedding(buckets["user"], dim, padding_idx=0)
        self.item = nn.Embedding(buckets["item"], dim, padding_idx=0)
        self.category = nn.Embedding(buckets["category"], dim, padding_idx=0)
        for table in (self.user, self.item, self.category):
            nn.init.normal_(table.weight, std=0.3)
            nn.init.zeros_(table.weight[0])
        self.attention = Attention(2 * dim, hidden) if with_history else None
        width = 7 * dim if with_history else 3 * dim
        self.top = nn.Sequential(nn.Linear(width, hidden), nn.PReLU(), nn.Linear(hidden, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Returns float32 (num_rows,)."""
        candidates = self._embed(batch["item"], batch["category"])
        found = [self.user(batch["user"]), candidates]
        if self.attention is not None:
            items: Jagged = batch["clicks_item"]
            # The same tables as for candidates: `share_slot` in the spec gave equal ids.
            events = self._embed(items.values, batch["clicks_category"].values)
            ages = batch["clicks_age"].values
            interest = self.attention(candidates, events, ages, items.offsets)
            found += [interest, interest * candidates]
        logits: Tensor = self.top(torch.cat(found, dim=1))[:, 0]
        return logits

    def _embed(self, items: Tensor, categories: Tensor) -> Tensor:
        return torch.cat([self.item(items), self.category(categories)], dim=1)
