"""Statistics of a table's columns, and the checks of `featstore table check --layout`.

| module | holds |
|---|---|
| column_statistics.py | statistics of a column, gathered batch by batch and merged |
| statistics_file.py | the Parquet file beside a partition that stores them |
| value_counts.py | exact counts of values |
| sketches.py | estimates of distinct values and top values; samples of rows |
| summary.py, measures.py | what is known of a slot; measures of counts |
| drift.py | how far a slot moved between two sets of rows |
| data_checks.py, table_check.py | the `checks` of a spec, before a commit and of a table |
| table_lint.py, lint_rules.py | what makes a table slow to read, from its footers |
"""
