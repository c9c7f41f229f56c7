"""Statistics of a table's columns, and what `featstore table lint` says of them.

| module | holds |
|---|---|
| column_statistics.py | what is known of a column, gathered batch by batch and merged |
| statistics_file.py | the Parquet file beside a partition that stores them |
| sketches.py, sampling.py | estimates of distinct values and top values; samples of rows |
| table_lint.py, lint_rules.py | columns that waste space or look broken |
"""
