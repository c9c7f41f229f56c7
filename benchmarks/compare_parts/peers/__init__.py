"""A file for each peer: its class `Reader`, as the peer's own documentation advises.

`Reader(job)` is iterated once for each epoch. A batch is a dict of tensors in the order of the
columns, lists as values and offsets; a missing id is 0, a missing float NaN, a missing list empty
(featstore's holds one missing id). `state_dict()` and
`load(states)` are there where the peer has states; `states` are those of all ranks that were
killed. `convert(files, folder)` is there where the peer does not read Parquet. `readers(job)` is
there where one process hands out batches to all ranks.
"""
