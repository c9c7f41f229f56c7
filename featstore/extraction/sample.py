"""Tries user operators on raw rows, to find errors that only show when they run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from featstore.base.errors import InputError, OperatorError
from featstore.base.redaction import redact
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import BATCH, BatchOrigin, Findings
from featstore.extraction.units.intake import Intake
from featstore.extraction.units.raw import find_raw_files, open_range, plan_units, read_batches
from featstore.spec.check import operator_of
from featstore.spec.graph import build_graph
from featstore.spec.lint import LintReport
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.user import check_rows, is_user_operator

_NUM_ROWS = 1_000
_ALL_ROWS = 2**62  # Of a unit: more than any file has.


def lint_sample(report: LintReport, raw_url: str) -> LintReport:
    """Adds to a lint report whether user operators treat each row independently.

    Args:
        report: The report of a spec without errors.
        raw_url: Raw Parquet; the first 1,000 rows are used.

    Raises:
        InputError: There are no raw rows, or they do not fit the spec.
        OperatorError: An operator fails on all of them together.
    """
    spec = replace(load_spec(report.spec_url), histories=())  # a sample has rows, and no events
    extractor = Extractor(spec)
    batch, origin = _first_rows(raw_url, extractor, spec.raw_types)
    extractor(batch, origin)
    rows = f"{batch.num_rows} rows of {redact(raw_url)}"
    has_own = any(is_user_operator(node.op) for node in spec.nodes)
    note = (
        f"operators of your own treat each of {rows} alone"
        if has_own
        else f"{rows} fit the inputs; there are no operators of your own to try on them"
    )
    return replace(
        report,
        findings=(*report.findings, *find_dependent_rows(spec, batch)),
        notes=(*report.notes, note),
    )


def find_dependent_rows(spec: Spec, batch: pa.RecordBatch) -> Iterator[str]:
    """Yields a finding for each user operator whose values depend on the cut into batches.

    An operator that fails on some batches is a finding too.

    Args:
        batch: Raw rows that the spec's extractor accepts.
    """
    own = {operator_of(node).function for node in spec.nodes if is_user_operator(node.op)}
    graph = build_graph(spec)
    intake = Intake(spec, graph.columns)
    intake.bind(batch.schema)
    values = intake.take(batch, BATCH, Findings()).columns
    for step in graph.steps:
        inputs = [values[i] for i in step.inputs]
        values.append(step.run(inputs))
        if step.function in own:
            try:
                check_rows(f"{step.owner} ({step.op})", step.function, inputs, step.params)
            except OperatorError as error:
                yield str(error)


def _first_rows(
    raw_url: str, extractor: Extractor, declared: Mapping[str, pa.DataType]
) -> tuple[pa.RecordBatch, BatchOrigin]:
    units = plan_units(find_raw_files(raw_url, {}, (), declared), _ALL_ROWS)
    if not units:
        raise InputError(f"{redact(raw_url)}: expected raw rows to try operators on, found none")
    raw = units[0].ranges[0]
    with open_range(raw) as file:
        batch = next(iter(read_batches(file, raw, extractor.columns_in(file.schema_arrow.names))))
        return batch.slice(0, _NUM_ROWS), BatchOrigin(
            source=redact(raw.url), first_row=raw.first_row
        )
