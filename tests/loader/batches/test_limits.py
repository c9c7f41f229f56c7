"""Batches of claims from whose ends other workers take rows while the batches are made."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.dispatch.terms import Claim, Terms
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.batch_slices import slice_batches
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.mixing import MixTerms, read_mixed
from featstore.loader.batches.mixtures import Splits, read_in_order
from featstore.loader.batches.progress import BlockSource, ClaimKey, Segment
from featstore.loader.batches.split_reader import SplitReader
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.reports import Reports
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.table.snapshot import DataFile
from tests.loader.batches.conftest import KEY, Unlimited, block
from tests.loader.conftest import data_file, request_of, work_on
from tests.loader.iteration.states import START

SCHEMA = pa.schema([("row", pa.int64())])
SIZES = (70, 45, 7)


class Cutting:
    """A coordinator whose claims others cut at rows that it has not reserved, or take over.

    Args:
        takes: Before each request: nothing (None), or the part of the rows that are not reserved
            which others take; above 1: the claim.
    """

    def __init__(self, takes: Iterable[float | None]) -> None:
        self._takes = iter(takes)
        self.made, self.limits = dict[ClaimKey, int](), dict[ClaimKey, int | None]()

    def make(self, _: object) -> bool:
        """Whether rows need not be asked for."""
        return False

    def reserve_all(self, rows: Iterable[tuple[Claim, int]]) -> list[int | None]:
        return [self._reserve(claim, through) for claim, through in rows]

    def _reserve(self, claim: Claim, through: int) -> int | None:
        made = self.made.setdefault(claim.key, claim.start_row)
        limit = self.limits.setdefault(claim.key, claim.end_row)
        taken = next(self._takes, None)
        if taken is not None and limit is not None and made < limit:
            limit = None if taken > 1 else limit - round((limit - made) * taken)
            self.limits[claim.key] = limit
        if limit is None:
            return None
        self.made[claim.key] = max(made, min(through, limit))
        return min(through, limit)


class Batches:
    """All batches of blocks, with what becomes of the claims meanwhile."""

    def __init__(
        self, blocks: Sequence[Block], batch_size: int, takes: Sequence[float | None]
    ) -> None:
        self.cutting = Cutting(takes)
        counts = Counter[str]()
        delivery, stats = Delivery(START, counts, tells=True), Stats()
        reports = Reports(delivery, stats, Terms())
        stand_in: Any = self.cutting
        reports.coordinator = stand_in
        for each in blocks:
            for source in each.sources:
                delivery.claim(source.claim)
        self.rows, self.segments = list[list[int]](), list[Segment]()
        for one in slice_batches(blocks, batch_size, drop_last=False, reserve=reports.reserve):
            self.segments += one.progress.segments
            if one.blocks:
                batch = one.batch()
                rows = batch["row"].tolist()
                assert len(rows) == batch.num_rows
                self.rows.append(rows)
        self.num_left_to_others = stats.counts["rows_left_to_others"]


def places_of(blocks: Iterable[Block]) -> dict[Claim, dict[int, int]]:
    """Of each claim, the place in its stream of each of its rows, which are numbered."""
    found = defaultdict[Claim, dict[int, int]](dict)
    for each in blocks:
        columns: Any = each.columns
        rows = columns[KEY].tolist() if each.num_rows else []
        draws = np.zeros(each.num_rows, int) if each.draws is None else each.draws
        for number, source in enumerate(each.sources):
            found[source.claim].update(_places(source, each, rows, np.flatnonzero(draws == number)))
    return dict(found)


def _places(
    source: BlockSource, of: Block, rows: list[int], numbers: Any
) -> Iterable[tuple[int, int]]:
    places = range(of.num_rows) if source.places is None else source.places.tolist()
    for place, number in zip(places, numbers.tolist(), strict=False):
        if number >= of.begin:
            yield rows[number], source.first_row + place


def require_exact(blocks: Sequence[Block], batch_size: int, takes: Sequence[float | None]) -> None:
    """Of each claim exactly the rows before its end come, in their order, in whole batches."""
    of_claims = places_of(blocks)
    found = Batches(blocks, batch_size, takes)
    assert [len(rows) for rows in found.rows[:-1]] == [batch_size] * (len(found.rows) - 1)
    assert 0 < len(found.rows[-1]) <= batch_size if found.rows else True
    delivered = [row for rows in found.rows for row in rows]
    num_left = 0
    for claim, places in of_claims.items():
        rows = [row for row in delivered if row in places]
        segments = [segment for segment in found.segments if segment.claim == claim]
        ends = [claim.start_row, *(segment.through for segment in segments)]
        assert ends == sorted(ends)
        assert rows == [row for row, place in places.items() if place < ends[-1]]
        num_left += len(places) - len(rows)
        limit = found.cutting.limits[claim.key]
        if limit is not None:
            assert ends[-1] == limit
            is_complete = [segment.is_complete for segment in segments]
            assert is_complete == [False] * (len(segments) - 1) + [True]
        else:
            assert not any(segment.is_complete for segment in segments)
            assert ends[-1] <= found.cutting.made[claim.key]
    assert len(delivered) == len(set(delivered))
    assert found.num_left_to_others == num_left


def test_a_claim_is_complete_where_its_last_rows_are_filtered_out_and_others_took_some(
    files: list[DataFile],
) -> None:
    """The third claim begins behind the last row of its file that passes, and waits as a part of a
    batch that straddles files.
    """
    blocks = assembled(files, 17, width=None, starts=[48, 16, 6], where="row % 3 = 1")
    require_exact(blocks, 17, [None, None, None, None, 0.9])


TAKES = st.lists(st.sampled_from([None, None, 0.1, 0.4, 0.9, 1.0, 2.0]), max_size=30)
WHERE = st.sampled_from([None, "row % 3 = 1", "row >= 1030", "row > 9000"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    root: Path = tmp_path_factory.mktemp("files")
    return [
        data_file(root / f"{at}.parquet", pa.table({"row": range(1000 * at, 1000 * at + size)}))
        for at, size in enumerate(SIZES)
    ]


def assembled(
    files: Sequence[DataFile],
    batch_size: int,
    *,
    width: int | None,
    starts: Sequence[int],
    where: str | None,
) -> list[Block]:
    """The blocks of all rows of the files from these on: in order, or so many files mixed."""
    shuffle = None if width is None else Shuffle(window_rows=30 * width, interleave=width)
    order, request = (
        RowOrder(seed=0, epoch=0, shuffle=shuffle),
        request_of(SCHEMA, "row", where=where),
    )
    work = iter(
        work_on(file, at, start_row=start, end_row=file.num_rows)
        for at, (file, start) in enumerate(zip(files, starts, strict=True))
    )

    def opened(item: Any) -> SplitReader:
        return SplitReader(item, request=request, order=order, stats=Stats())

    splits = Splits(work=work, open_split=opened)
    if width is None:
        mixtures = read_in_order(splits)
    else:
        terms = MixTerms(order=order, width=width, section_of=lambda _: range(len(files)))
        mixtures = read_mixed(splits, terms, Unlimited(), Stats())
    return list(Assembler(request, batch_size, Stats()).all_blocks(mixtures))


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    batch_size=st.integers(1, 40),
    width=st.sampled_from([None, 1, 2, 3]),
    where=WHERE,
    takes=TAKES,
)
def test_batches_of_files_have_each_row_before_the_end_of_its_claim_once(
    files: list[DataFile],
    data: st.DataObject,
    batch_size: int,
    width: int | None,
    where: str | None,
    takes: list[float | None],
) -> None:
    """Once rows of a block are left out, the batches after it straddle blocks."""
    files = files[: data.draw(st.integers(1, 3))]
    starts = [data.draw(st.integers(0, file.num_rows)) for file in files]
    blocks = assembled(files, batch_size, width=width, starts=starts, where=where)
    require_exact(blocks, batch_size, takes)


@pytest.mark.parametrize(
    ("starts", "batch_size", "where", "takes"),
    [
        ([24, 12], 12, None, [None, 0.9, None, None, None, None, 2.0]),
        (
            [35, 8, 5],
            8,
            "row % 3 = 1",
            [
                *[None, None, 0.9, *[None] * 6, 0.4, *[None] * 3, 0.9, None, 0.1, None, 2.0, 0.1],
                *[2.0, 1.0, *[None] * 3, 0.1, 2.0, None, 0.9, 0.4, None],
            ],
        ),
    ],
)
def test_what_a_cut_leaves_out_does_not_lead_a_claim_back(
    files: list[DataFile],
    starts: list[int],
    batch_size: int,
    where: str | None,
    takes: list[float | None],
) -> None:
    files = files[: len(starts)]
    blocks = assembled(files, batch_size, width=2, starts=starts, where=where)
    require_exact(blocks, batch_size, takes)


@settings(max_examples=300)
@given(
    of=st.lists(
        st.tuples(st.integers(0, 20), st.booleans(), st.integers(0, 2)), min_size=1, max_size=6
    ),
    batch_size=st.integers(1, 9),
    takes=TAKES,
)
def test_batches_of_blocks_in_order_have_each_row_before_the_end_of_its_claim_once(
    of: list[tuple[int, bool, int]], batch_size: int, takes: list[float | None]
) -> None:
    """Blocks that nobody has divided where batches end: one or more of each claim."""
    blocks = []
    for split, (num_rows, is_filtered, num_more) in enumerate(of):
        ends = [
            100 * (number + 1) if is_filtered else num_rows * (number + 1)
            for number in range(num_more + 1)
        ]
        for number in range(num_more + 1):
            first = number * (100 if is_filtered else num_rows)
            found = block(
                split,
                first,
                num_rows,
                is_last=number == num_more,
                places=3 + 2 * np.arange(num_rows) if is_filtered else None,
            )
            [source] = found.sources
            claim = Claim(index=split, split=source.claim.split, fence=1, end_row=ends[-1])
            found.sources = (source._replace(claim=claim),)
            blocks.append(found)
    require_exact(blocks, batch_size, takes)
