"""The task of a slot group's run: each unit writes a file beside one base data file."""

from collections.abc import Mapping
from dataclasses import dataclass

from featstore.extraction.groups.part import Part
from featstore.extraction.unit import UnitTask
from featstore.schema import SlotSchema
from featstore.table.layout import data_file_name, group_file_path
from featstore.table.metadata import FileMetadata


@dataclass(frozen=True, kw_only=True)
class Target:
    """The base data file that a unit's file is bound to.

    Attributes:
        rows_per_row_group: Rows per row group of the base file; the unit's file is cut alike.
        rows_digest: Digest of the rows' identity: of their raw ranges, or of their keys.
    """

    base_path: str
    num_rows: int
    rows_per_row_group: int
    rows_digest: str


@dataclass(frozen=True, kw_only=True)
class GroupTask(UnitTask):
    """What all units of a slot group's run have in common.

    Attributes:
        part: The part of the spec to extract; `table_url` is the group's own table.
        targets: The base file of each unit, by the unit's index.
        bound_by: How rows were matched: `input`, or `key {column}`.
    """

    part: Part
    targets: Mapping[int, Target]
    bound_by: str = "input"

    def stored(self, schema: SlotSchema) -> SlotSchema:
        return self.part.stored(schema)

    def rows_per_row_group(self, unit: int) -> int:
        return self.targets[unit].rows_per_row_group

    def file_metadata(self, unit: int = 0) -> FileMetadata:
        target = self.targets[unit]
        base = {"path": target.base_path, "bound_by": self.bound_by, "rows": target.rows_digest}
        return FileMetadata(spec_hash=self.spec.hash, spec_version=self.spec.version, base=base)

    def path(self, partition: Mapping[str, str], unit: int, attempt: int, part: int = 0) -> str:
        return group_file_path(
            self.targets[unit].base_path, data_file_name(self.tag, unit, attempt, part)
        )
