"""Partitions whose data files are written anew, and replaced in one commit.

| module | holds |
|---|---|
| compaction.py | groups folded into the base files |
| deletion.py | rows removed |
| remains.py | what statistics and texts say of the rows that are left |
| rewriting.py | what both need: one file rewritten, the change to commit |
"""
