"""The report of a join: its figures, their check, and the report as JSON and text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from featstore.base.errors import InputError, JoinError
from featstore.base.redaction import redact
from featstore.base.telemetry import span
from featstore.files.lineage import LineageDataset, LineageRun
from featstore.files.storage import join as join_url
from featstore.ingest.join_options import Label, LabelJoin, LogSource, Lookup
from featstore.ingest.join_query import DELAY_BOUNDARIES_S, NUM_BUCKETS
from featstore.ops.arrays import values_of
from featstore.ops.hashing import row_hash
from featstore.table.layout import partition_path

FORMAT = 1
_SIZES = "num_rows", "num_files", "size_bytes"
Counts = Mapping[str, Any]  # integers, and histograms as lists of (x, y)


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A set of rows by their ids: their number, and an XOR and a sum over the hashes of the ids."""

    num_rows: int
    key_xor: int
    key_sum: int

    def __str__(self) -> str:
        return f"{self.key_xor & (2**64 - 1):016x}{self.key_sum:016x}"

    @classmethod
    def of(cls, parts: "Iterable[Digest]") -> "Digest":
        """That of all rows of several sets, which have none in common."""
        num_rows = key_xor = key_sum = 0
        for part in parts:
            num_rows += part.num_rows
            key_xor ^= part.key_xor
            key_sum += part.key_sum
        return cls(num_rows=num_rows, key_xor=key_xor, key_sum=key_sum)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was counted while the rows passed.

    Attributes:
        impressions: Rows as they were read.
        distinct: Impressions after duplicates were dropped.
        events: Counts of each label's log, in the order of the labels.
        dimensions: Counts of each lookup's log, in the order of the lookups.
        joined: Rows after all joins.
        written: Rows read back from the files.
    """

    impressions: Counts
    distinct: Counts
    events: Sequence[Counts]
    dimensions: Sequence[Counts]
    joined: Counts
    written: Digest


@dataclass(frozen=True, kw_only=True)
class JoinReport:
    """The result of a join.

    Attributes:
        written: False if the output already held the rows of an equal join.
        document: The content of `_report.json`, which lies beside the rows.
    """

    url: str = field(repr=False)
    written: bool
    document: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {"url": redact(self.url), "written": self.written, **self.document}

    def __str__(self) -> str:
        output = self.document["output"]
        done = "wrote" if self.written else "nothing to do: an equal join wrote"
        size = (
            f"{output['num_rows']:,} rows in {output['num_files']:,} files, "
            f"{output['size_bytes']:,} bytes"
        )
        return f"{done} {size}, {redact(self.url)}\n\n{report_text(self.document)}"


class Output(Protocol):
    """Where the rows of a join are published: a directory, or a table."""

    def equal(self, digest: str, input_digest: str | None) -> tuple[str, Mapping[str, Any]] | None:
        """The address and the report of an equal join that published there; None if there is none.

        Raises:
            InputError: What is there was not written by a join.
        """

    def writing(self) -> AbstractContextManager[None]:
        """Around the writing and publishing: what is written is removed if the block fails."""

    def size(self) -> tuple[int, int]:
        """The number of files and bytes that are written but not yet published."""

    def unchanged(self) -> tuple[str, Mapping[str, Any]] | None:
        """As `equal`, of a join that published the same rows as are written, which are removed."""

    def publish(self, document: Mapping[str, Any], text: str) -> str:
        """Makes rows and report visible in one step; returns their address."""


def run_join(
    join: LabelJoin,
    output: Output,
    input_digest: str | None,
    write: Callable[[], Figures],
    versions: Mapping[LogSource, int | str | None] | None = None,
) -> JoinReport:
    """Writes, checks and publishes the rows of a join, unless an equal join published there, or one
    with equal rows.

    Args:
        input_digest: Identifies the input; None if that is not possible.
        write: Writes the rows.
        versions: Those of the logs that are tables, for lineage.

    Raises:
        JoinError: Rows were lost or duplicated.
        InputError: As of `check`, or the output is not that of a join.
        CommitConflictError: Another join published to the same directory at the same time.
    """
    read = [
        replace(known, version=known.version or (versions or {}).get(source))
        for source in join.sources
        if source.url and (known := LineageDataset.of(source.url))
    ]
    published = LineageDataset.of(join.output_url)
    lineage = LineageRun("featstore.join_labels", read, [published])
    with span("join_labels", output=redact(join.output_url)) as note, lineage:
        report = _run_join(join, output, input_digest, write)
        made = report.document["output"]
        num_rows, num_files, size_bytes = (made[n] if report.written else 0 for n in _SIZES)
        note(rows=num_rows)
        written = replace(
            published,
            version=LineageDataset.of(report.url).version,
            num_rows=num_rows,
            num_files=num_files,
            size_bytes=size_bytes,
        )
        lineage.note(report.document, outputs=[written])
    return report


def _run_join(
    join: LabelJoin, output: Output, input_digest: str | None, write: Callable[[], Figures]
) -> JoinReport:
    found = output.equal(join.digest, input_digest)
    if found is None:
        with output.writing():
            figures = write()
            check(figures, join)
            num_files, size_bytes = output.size()
            found = output.unchanged()
            if found is None:
                made = document(
                    join,
                    figures,
                    input_digest=input_digest,
                    num_files=num_files,
                    size_bytes=size_bytes,
                )
                url = output.publish(made, report_text(made))
                return JoinReport(url=url, written=True, document=made)
    url, earlier = found
    return JoinReport(url=url, written=False, document=earlier)


def output_url(join: LabelJoin) -> str:
    """The directory that a join publishes, unless it writes to a table."""
    return join_url(join.output_url, partition_path(join.partition))


def digest(counts: Counts, prefix: str = "key", num_rows: str = "num_rows") -> Digest:
    """Reads a digest from counts whose names begin with `prefix`."""
    return Digest(
        num_rows=counts[num_rows], key_xor=counts[f"{prefix}_xor"], key_sum=counts[f"{prefix}_sum"]
    )


def digest_of_rows(batches: Iterable[Sequence[pa.Array]]) -> Digest:
    """The digest of rows by the columns of their ids."""

    def of_batch(columns: Sequence[pa.Array]) -> Digest:
        hashes = values_of(row_hash(columns))
        return Digest(
            num_rows=len(hashes),
            key_xor=int(np.bitwise_xor.reduce(hashes)),
            key_sum=int((hashes.view(np.uint64) >> np.uint64(34)).sum()),
        )

    return Digest.of(map(of_batch, batches))


def mismatch(figures: Figures) -> str | None:
    """Checks that the rows are exactly the distinct impressions, and the files those to keep.

    Returns a description of the first mismatch, None if there is none.
    """
    distinct, joined = digest(figures.distinct), digest(figures.joined)
    kept = digest(figures.joined, "kept", "num_kept") if "num_kept" in figures.joined else joined
    written = figures.written
    read, dropped = figures.impressions["num_input_rows"], figures.impressions["num_incomplete"]
    if distinct.num_rows > read - dropped:
        return f"{distinct.num_rows} distinct impressions of {read - dropped} rows"
    if joined != distinct:
        return f"{_rows(distinct)} distinct impressions became {_rows(joined)} rows in the join"
    return (
        None
        if written == kept
        else f"the files hold {_rows(written)} rows instead of {_rows(kept)}"
    )


def check(figures: Figures, join: LabelJoin) -> None:
    """Checks the figures of a join before its rows are published.

    Raises:
        JoinError: Rows were lost or duplicated.
        InputError: Impressions lack an id or a time, and `drop_incomplete` is not set.
    """
    problem = mismatch(figures)
    if problem is not None:
        raise JoinError(
            f"{redact(join.output_url)}: {problem}; nothing was published. Run it again; if it "
            f"fails again, look for failing disks or for another writer in the output's directory"
        )
    dropped = figures.impressions["num_incomplete"]
    if dropped and not join.drop_incomplete:
        columns = ", ".join([*join.impressions.row_id, join.impressions.event_time])
        raise InputError(
            f"{join.impressions.source}: {dropped} of {figures.impressions['num_input_rows']} "
            f"impressions have a null in {columns}, so they cannot be identified or placed in "
            "time; correct the log, or drop them (--drop-incomplete)"
        )


def _rows(found: Digest) -> str:
    return f"{found.num_rows} (digest {found})"


def document(
    join: LabelJoin, figures: Figures, *, input_digest: str | None, num_files: int, size_bytes: int
) -> dict[str, Any]:
    """Builds the report's JSON document; docs/contracts.md describes each key."""
    return {
        "format": FORMAT,
        "join_digest": join.digest,
        "input_digest": input_digest,
        "cut_off": join.cut_off.isoformat(),
        "impressions": _impressions(figures),
        "labels": [
            _label(i, label, figures.events[i], figures.joined)
            for i, label in enumerate(join.labels)
        ],
        "lookups": [
            _lookup(j, lookup, figures.dimensions[j], figures.joined)
            for j, lookup in enumerate(join.lookups)
        ],
        "negatives": _negatives(join, figures.joined),
        "output": {
            "num_rows": figures.written.num_rows,
            "key_digest": str(figures.written),
            "num_files": num_files,
            "size_bytes": size_bytes,
        },
    }


def _impressions(figures: Figures) -> dict[str, int]:
    read, distinct = figures.impressions, figures.distinct["num_rows"]
    return {
        "num_input_rows": read["num_input_rows"],
        "num_incomplete": read["num_incomplete"],
        "num_duplicates": read["num_input_rows"] - read["num_incomplete"] - distinct,
        "num_rows": distinct,
    }


def _label(i: int, label: Label, events: Counts, joined: Counts) -> dict[str, Any]:
    hit, unripe, no_key = (joined[f"label{i}_{state}"] for state in ("hit", "unripe", "no_key"))
    attributed, negative = (
        joined[f"label{i}_attributed"],
        joined["num_rows"] - hit - unripe - no_key,
    )
    return {
        "name": label.name,
        "kind": label.kind,
        "attribution": label.attribution,
        "window_s": label.window_s,
        "horizon_s": label.ripe_after_s,
        "num_input_rows": events["num_input_rows"],
        "num_incomplete": events["num_incomplete"],
        "num_late": events["num_late"],
        "num_duplicates": events["num_input_rows"]
        - events["num_incomplete"]
        - events["num_late"]
        - events["num_events"],
        "num_events": events["num_events"],
        "num_attributed": attributed,
        "num_orphans": events["num_events"] - attributed,
        "num_without_key": no_key,
        "num_unripe": unripe,
        "num_negative": negative,
        "num_hit": hit,
        "hit_rate": _share(hit, hit + negative),
        "fan_out": _share(joined["num_rows"] + joined[f"label{i}_more"], joined["num_rows"]),
        "max_fan_out": joined[f"label{i}_max"],
        "delay": _histogram([(round(x) // NUM_BUCKETS, y) for x, y in joined[f"label{i}_delays"]]),
        "arrival": _histogram([(round(x) % NUM_BUCKETS, y) for x, y in joined[f"label{i}_delays"]]),
    }


def _histogram(bins: Iterable[tuple[int, float]]) -> list[dict[str, int]]:
    """Returns the counts of all buckets from (bucket number, count), where numbers may repeat."""
    counts = [0] * NUM_BUCKETS
    for bucket, count in bins:
        counts[bucket] += round(count)
    bounds = (0, *DELAY_BOUNDARIES_S)
    return [
        {"from_s": bound, "num_impressions": count}
        for bound, count in zip(bounds, counts, strict=True)
    ]


def _lookup(j: int, lookup: Lookup, read: Counts, joined: Counts) -> dict[str, Any]:
    found, too_old = joined[f"lookup{j}_found"], joined[f"lookup{j}_too_old"]
    return {
        "name": lookup.name,
        "num_input_rows": read["num_input_rows"],
        "num_incomplete": read["num_incomplete"],
        "num_found": found,
        "num_too_old": too_old,
        "num_missing": joined["num_rows"] - found - too_old,
        "hit_rate": _share(found, joined["num_rows"]),
    }


def _negatives(join: LabelJoin, joined: Counts) -> dict[str, Any] | None:
    if join.negatives is None:
        return None
    return {
        "label": join.negatives.label,
        "rate": join.negatives.rate,
        "seed": join.negatives.seed,
        "num_negatives": joined["num_negatives"],
        "num_kept": joined["num_negatives_kept"],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def report_text(document: Mapping[str, Any]) -> str:
    """Formats the report as text: tables, and a histogram per label."""
    parts = [f"as known at {document['cut_off']}", _table("impressions", [document["impressions"]])]
    scalars = [
        {key: value for key, value in label.items() if not isinstance(value, list)}
        for label in document["labels"]
    ]
    parts.append(_transposed(scalars))
    if document["lookups"]:
        parts.append(_transposed(document["lookups"]))
    if document["negatives"]:
        parts.append(_table("negatives", [document["negatives"]]))
    return "\n\n".join([*parts, *map(_bars, document["labels"])]) + "\n"


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{title}\n" + tabulate(
        [list(row.values()) for row in rows], headers=list(rows[0]), intfmt=",", floatfmt=".4g"
    )


def _transposed(parts: Sequence[Mapping[str, Any]]) -> str:
    lines = [[key, *(_number(part[key]) for part in parts)] for key in parts[0] if key != "name"]
    headers = ["", *(part["name"] for part in parts)]
    return tabulate(
        lines, headers=headers, disable_numparse=True, colalign=["left", *["right"] * len(parts)]
    )


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bars(label: Mapping[str, Any]) -> str:
    """The histogram of delays until the first event, as it happened and as it was logged."""
    happened, logged = (
        [bucket["num_impressions"] for bucket in label[name]] for name in ("delay", "arrival")
    )
    bounds, total = [bucket["from_s"] for bucket in label["delay"]], max(1, sum(happened))
    lines = [
        [
            f"from {_duration(bound)}",
            f"{one / total:.1%}",
            f"{other / total:.1%}",
            "#" * round(40 * one / total),
        ]
        for bound, one, other in zip(bounds, happened, logged, strict=True)
    ]
    return tabulate(
        lines,
        headers=[f"{label['name']}: delay", "happened", "logged", ""],
        colalign=["left", "right", "right", "left"],
    )


def _duration(seconds: int) -> str:
    unit, size = next(
        (unit, size)
        for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
        if not seconds % size
    )
    return f"{seconds // size} {unit}" if seconds else "0 s"
