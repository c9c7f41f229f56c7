"""What a job asks for: slots by name and glob, rows by `where`.

| module | holds |
|---|---|
| slot_names.py | `select`: names and globs to slot names |
| where.py | `parse_where`: the tree of a `where` to an Arrow expression |
| where_tree.py | the text of a `where` to sqlglot's tree, within bounds |
| predicate.py | which row groups a `where` may match, judged by their statistics |
"""
