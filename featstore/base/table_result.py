"""Results that are Arrow tables: as text, as HTML of a notebook, and for pandas and polars."""

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from featstore.base.errors import SelectionError, missing_extra, nearest
from featstore.base.text_table import Printed, html_table, telling_columns, text_table

_FORMAT = "1.4.0"  # of the metadata: the version of pandas that defined it


class TableResult(Printed, ABC):
    """A result whose rows are those of an Arrow table.

    Attributes:
        table: The Arrow table.
    """

    table: pa.Table

    _align: ClassVar[Sequence[str] | None] = None
    """`left` or `right` for each column of the table of text; None for all left."""

    def _head(self) -> str:
        """The lines above the table of text; empty for none."""
        return ""

    @abstractmethod
    def _shown(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """The headers and the cells of the table of text."""

    def _foot(self) -> Sequence[str]:
        """The lines below the table of text."""
        return ()

    def text(self, width: int | None = None) -> str:
        """The result as text, with a table of `width` characters at most if given. If it does not
        fit, columns that are 0, unknown or empty in every row are left out, and named below it.
        """
        headers, rows = self._shown()
        align = self._align or ["left"] * len(headers)
        kept = range(len(headers)) if width is None else telling_columns(headers, rows, width)
        table = text_table(
            [[row[i] for i in kept] for row in rows],
            [headers[i] for i in kept],
            align=[align[i] for i in kept],
            width=width,
        )
        head = [text] if (text := self._head()) else []
        zeros = [header for i, header in enumerate(headers) if i not in kept]
        left_out = [f"0, unknown or empty in every row: {', '.join(zeros)}"] if zeros else []
        return "\n".join([*head, table, *left_out, *self._foot()])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        headers, cells = self._shown()
        return html_table(self._head(), headers, cells, self._foot())

    def to_pandas(self) -> Any:
        """`table` as a pandas DataFrame. Integer columns with nulls are of the type `Int64`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            return nullable_integers(self.table).to_pandas()
        except ModuleNotFoundError as error:
            raise missing_extra("to_pandas()", error) from error

    def to_polars(self) -> Any:
        """`table` as a polars DataFrame.

        Raises:
            MissingDependencyError: polars is not installed.
        """
        try:
            import polars
        except ModuleNotFoundError as error:
            raise missing_extra("to_polars()", error) from error
        return polars.from_arrow(self.table)


def slot_row(table: pa.Table, slot: str, result: str = "profile") -> dict[str, Any]:
    """The row of a slot, of the table of a result with a row for each.

    Raises:
        SelectionError: There is none. The message suggests the nearest names.
    """
    names = table["slot"].to_pylist()
    if slot not in names:
        raise SelectionError(f"no slot {slot!r} in the {result}{nearest(slot, names)}")
    row: dict[str, Any] = table.slice(names.index(slot), 1).to_pylist()[0]
    return row


def rows_by_slot(table: pa.Table) -> defaultdict[str, list[dict[str, Any]]]:
    """The rows of each slot, of a table with any number of rows for each."""
    return grouped(table, "slot")


def grouped(table: pa.Table, column: str) -> defaultdict[str, list[dict[str, Any]]]:
    """The rows with each text of a column."""
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        rows[row[column]].append(row)
    return rows


def nullable_integers(table: pa.Table) -> pa.Table:
    """The same table, of which pyarrow's `to_pandas()` makes pandas' nullable integers where an
    integer column holds nulls. By itself it makes floats of these, which round signs.

    Only the metadata of the schema changes: pyarrow reads the types of the frame from there.
    """
    columns = [
        {
            "name": column.name,
            "field_name": column.name,
            "pandas_type": str(column.type),
            "numpy_type": str(column.type).replace("int", "Int").replace("uInt", "UInt"),
            "metadata": None,
        }
        for i, column in enumerate(table.schema)
        if pa.types.is_integer(column.type) and table.column(i).null_count
    ]
    metadata = {k: v for k, v in (table.schema.metadata or {}).items() if k != b"pandas"}
    if columns:
        frame = {"index_columns": [], "column_indexes": [], "columns": columns}
        metadata[b"pandas"] = json.dumps({**frame, "pandas_version": _FORMAT}).encode()
    return table.replace_schema_metadata(metadata or None)


def number_text(value: float | None, digits: int = 4) -> str:
    """A number in few digits, or a dash for None. What is less than 1, as a share may be, has as
    many digits as show it.
    """
    if value is None:
        return "-"
    if 0.5 < value < 1.0:
        texts = (f"{value:.{number}g}" for number in range(digits, 18))
        return next(text for text in texts if text != "1")
    return f"{value:.{digits if abs(value) < 10**digits - 0.5 else 4}g}"


def two_digits(value: float | None) -> str:
    """A figure of which chance leaves no more, such as of drift; a dash for None."""
    return number_text(value, 2)


ERRORS_95 = 1.96  # standard errors on both sides of a figure make an interval of 95 %


def auc_text(auc: float | None, standard_error: float | None) -> str:
    """An AUC and its error of 95 %, or a dash for None."""
    if auc is None or standard_error is None:
        return "-" if auc is None else f"{auc:.3f}"
    error = ERRORS_95 * standard_error
    return f"{auc:.3f} ±{error:.{2 if error >= 0.01 else 1}g}"


def before_after_text(before: str, after: str) -> str:
    """Two figures, or one if they are equal."""
    return before if before == after else f"{before} → {after}"


_MARKS = {"at least": "≥ ", "estimated bins": "≈ "}


def least_text(number: float | None, method: str | None, text: Callable[[float], str]) -> str:
    """A drift, after `≥` if its method is `at least`, and `≈` if it is `estimated bins`; a dash for
    None.

    Args:
        number: The figure.
        method: `psi_method` of its row.
        text: How a figure is written.
    """
    return "-" if number is None else f"{_MARKS.get(method or '', '')}{text(number)}"


def share_text(share: float | None, error: float | None = None) -> str:
    """A share as a percentage with its error of 95 %, or a dash for None. Nothing is said of an
    error of 0.
    """
    if share is None:
        return "-"
    # Not "0.0%" and "100.0%": these are said of none and of all.
    text = (
        "<0.1%" if 0.0 < share < 0.0005 else ">99.9%" if 0.9995 <= share < 1.0 else f"{share:.1%}"
    )
    return f"{text}{error_text(error or 0.0)}"


def number_with_error(number: int | None, error: float | None) -> str:
    """A count with its relative error of 95 %, or a dash for None."""
    return "-" if number is None else f"{number:,}{error_text(error or 0.0)}"


def error_text(error: float) -> str:
    """An error of 95 %, after the figure; nothing after an exact one."""
    if not error:
        return ""
    return " ±<0.1%" if error < 0.001 else f" ±{error:.1%}"
