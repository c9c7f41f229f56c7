"""What a job asks for: slots by name and glob, rows by `where`.

| module | holds |
|---|---|
| where.py | `select`, and `parse_where`: the tree of a `where` to an Arrow expression |
| where_tree.py | the text of a `where` to sqlglot's tree, within bounds |
| predicate.py | which row groups a `where` may match, judged by their statistics |
"""
