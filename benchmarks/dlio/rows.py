"""The rows of the workload in Parquet, and the columns that are read of them in those of DLIO's
formats that hold rows. A row is 264 bytes in each: 26 int64, 13 float32 and the label.

    python -m dlio.rows DIRECTORY NUM_FILES   # needs h5py
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from loader_parts.plain_workload import DLRM, PlainWorkload

# DLIO's name of a format of which it reads no file. It knows no Parquet.
PARQUET = "synthetic"


def write(of: PlainWorkload, directory: Path) -> Path:
    """Writes a data folder of DLIO for each format into a folder of `directory`, unless it is
    there; that folder.
    """
    paths = [Path(path) for path in of.write(directory)]
    folder = directory / f"{paths[0].parent.name}-of-dlio"
    if not folder.exists():
        part = folder.with_suffix(".part")
        for name in (PARQUET, *FORMATS):
            for inner in ("train", "valid"):
                (part / name / inner).mkdir(parents=True, exist_ok=True)
        *slots, label = of.columns
        config = {"slots": slots, "labels": [label]}
        (part / PARQUET / "featstore.yaml").write_text(yaml.safe_dump(config))
        for path in paths:
            linked = part / PARQUET / "train" / f"{path.name}.{PARQUET}"
            linked.unlink(missing_ok=True)
            linked.hardlink_to(path)
            table = pq.read_table(path, columns=of.columns)
            for name, write_file in FORMATS.items():
                write_file(table, part / name / "train" / f"{path.stem}.{name}")
        part.rename(folder)
    return folder


def records_of(table: pa.Table) -> np.ndarray:
    """The rows as records without padding."""
    columns = [column.to_numpy() for column in table.columns]
    return np.rec.fromarrays(columns, names=table.column_names)


def _bytes_of(table: pa.Table) -> np.ndarray:
    """uint8 (num_rows, bytes of a row)."""
    return records_of(table).view(np.uint8).reshape(table.num_rows, -1)


def _write_npz(table: pa.Table, path: Path) -> None:
    np.savez(path, x=_bytes_of(table).T)  # DLIO's samples lie along the last axis.


def _write_hdf5(table: pa.Table, path: Path) -> None:
    import h5py  # in DLIO's environment alone

    with h5py.File(path, "w") as file:
        file.create_dataset("records", data=_bytes_of(table))


def _write_csv(table: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(table, path)


def _write_indexed_binary(table: pa.Table, path: Path) -> None:
    rows = _bytes_of(table)
    rows.tofile(path)
    num_rows, num_bytes = rows.shape
    (num_bytes * np.arange(num_rows, dtype=np.int64)).tofile(f"{path}.off.idx")
    np.full(num_rows, num_bytes, np.int64).tofile(f"{path}.sz.idx")


FORMATS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    "npz": _write_npz,
    "hdf5": _write_hdf5,
    "csv": _write_csv,
    "indexed_binary": _write_indexed_binary,
}

if __name__ == "__main__":
    print(write(replace(DLRM, num_files=int(sys.argv[2])), Path(sys.argv[1])))
