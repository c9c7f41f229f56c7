"""One unit of a slot group's extraction: the raw rows that became one base data file, in a file
beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from featstore.extraction.groups.part import Part
from featstore.extraction.unit import UnitTask
from featstore.schema import SlotSchema
from featstore.table.layout import data_file_name, group_file_path
from featstore.table.metadata import FileMetadata


@dataclass(frozen=True, kw_only=True)
class Target:
    """The base data file that a unit's file is bound to, its rows and how they are cut, and the
    digest of what they are.
    """

    base_path: str
    num_rows: int
    rows_per_row_group: int
    rows_digest: str


@dataclass(frozen=True, kw_only=True)
class GroupTask(UnitTask):
    """What every unit of a slot group's run has in common: `table_url` is the group's, `targets`
    are by unit.

    `bound_by` says how rows were found to be the base's: `input`, or `key {column}`.
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
