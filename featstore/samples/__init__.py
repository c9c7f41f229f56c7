"""Random access to samples, by index or by id, in orders that are never held in memory.

| module | holds |
|---|---|
| random_order.py | `RandomOrder`: which row comes at which position of an epoch |
| order_batches.py | that order shared among ranks, in batches or row by row, with states |
| batches_by_cost.py | in batches of a capped number of values, with similar lengths together |
| dispatched_order.py | `DispatchedOrder`: that order, claimed by workers at their own pace |
| permutation.py | the orders it chooses from |
| sample_store.py | `SampleStore`: samples that are not columns, in one SQLite file |
| sample_statements.py | its statements |
| sample_file.py | that file: its format, how it is opened, and what its errors mean |
| sample_fields.py | the fields of a sample, and how their values are stored |
| sample_imports.py | samples out of JSON lines and Parquet |
| sample_dataset.py | `SampleDataset`: the rows of a table, also decoded before a run |
| open_samples.py | its samples, opened in one process |
| lookups.py, decoded_rows.py | found by filters and ids, gathered into batches |
| indices.py | what may stand in brackets: `samples[i]`, `samples[10:20]`, `samples[[3, 1, 2]]` |
"""
