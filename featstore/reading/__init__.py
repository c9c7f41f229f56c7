"""Local Parquet files to columns: footers parsed once, row groups read one by one, Arrow turned
into numpy buffers.

| file | holds |
|---|---|
| footer.py | an open data file and how a selection maps to its columns |
| reader.py | one row group at a time, as Arrow columns under their table names |
| buffers.py | Arrow columns to value and offset buffers, nulls as missing marks |
| missing.py | the other way: missing marks shown as null |
"""
