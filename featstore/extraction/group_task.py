"""The task of a slot group's run: for each base data file of its rows, a unit writes a file."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from featstore.base.schema import SlotSchema
from featstore.extraction.units.part import Part
from featstore.extraction.units.unit import UnitTask
from featstore.table.layout import data_file_name, group_file_path
from featstore.table.metadata import FileMetadata
from featstore.table.writer import DataFileWriter


@dataclass(frozen=True, kw_only=True)
class Target:
    """The base data file that one of a unit's files is bound to.

    Attributes:
        row_groups: The rows of each row group of the base file; the unit's file is cut alike.
        rows_digest: Digest of the rows' identity: of their raw ranges, or of their keys.
    """

    base_path: str
    num_rows: int
    row_groups: tuple[int, ...]
    rows_digest: str


@dataclass(frozen=True, kw_only=True)
class GroupTask(UnitTask):
    """What all units of a slot group's run have in common.

    Attributes:
        part: The part of the spec to extract; `table_url` is the group's own table.
        targets: The base files of each unit, in the order of their rows, by the unit's index.
        bound_by: How rows were matched: `input`, or `key {column}`.
    """

    part: Part
    targets: Mapping[int, tuple[Target, ...]]
    bound_by: str = "input"

    def stored(self, schema: SlotSchema) -> SlotSchema:
        return self.part.stored(schema)

    def rows_per_row_group(self, unit: int, part: int = 0) -> int:
        return max(self.targets[unit][part].row_groups, default=0) or 1

    def rows_left(self, unit: int, part: int, writer: DataFileWriter) -> int:
        """As many rows as the base file has, and all that are left for the last one: whether they
        are as many is checked when all units are done.
        """
        is_last = part == len(self.targets[unit]) - 1
        return sys.maxsize if is_last else self.targets[unit][part].num_rows - writer.num_rows

    def file_metadata(self, unit: int = 0, part: int = 0) -> FileMetadata:
        target = self.targets[unit][part]
        base = {"path": target.base_path, "bound_by": self.bound_by, "rows": target.rows_digest}
        return FileMetadata(spec_hash=self.spec.hash, spec_version=self.spec.version, base=base)

    def path(self, partition: Mapping[str, str], unit: int, attempt: int, part: int = 0) -> str:
        return group_file_path(
            self.targets[unit][part].base_path, data_file_name(self.tag, unit, attempt, part)
        )
