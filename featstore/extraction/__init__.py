"""Running a graph: over files here and on Spark, for days, for slot groups.

| module | holds |
|---|---|
| job.py, local.py | one run: plans units, has them extracted, checks, commits; threads that do it |
| days.py | a range of days, one run each |
| fit.py, sample.py | vocabularies and quantiles fitted to raw rows; a spec tried on some |
| replaced.py | what a run replaced |
| group_job.py, by_key.py | slot groups: slots added to rows that are there |
| rewriting.py, deletion.py | files replaced in one commit: compacted, or without some rows |
| units/ | one unit of raw rows, from reading to its data file |
| spark/ | the same units as Spark tasks |
"""
