"""Events that are stored once in a row group, and of which each row has a range.

| file | holds |
|---|---|
| file_format.py | the columns of a history in data files, and what their metadata say |

Why, and by which rules: docs/design/histories.md.
"""
