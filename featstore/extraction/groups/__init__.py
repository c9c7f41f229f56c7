"""Slot groups: slots extracted later, into files that match the base files row by row.

| module | holds |
|---|---|
| group_job.py | one run: finds the base rows, extracts, checks, commits |
| part.py | the part of a spec that a group extracts |
| group_task.py | what a task writes, and which base file each file belongs to |
| by_key.py | rows matched by a kept column instead of by position |
"""
