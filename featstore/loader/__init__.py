"""From a table and a selection to batches of tensors.

| room | holds |
|---|---|
| request/ | what a job asks for of a table, and what becomes of the rows |
| plan/ | what is read: the files, their splits and orders |
| batches/ | files to rows, rows to batches: filtered, mixed, gathered, sliced, transformed |
| iteration/ | one iteration over epochs: claims, threads, delivery, state, the end |

| module | holds |
|---|---|
| feature_loader.py | `FeatureLoader`, the public face of a source |
| description.py | what a loader is made of: its keywords in groups, its files and splits |
| table_source.py | the life of a loader of one table |
| mixed_*.py | that of a loader of several tables, drawn by weight |
| stage.py | `featstore stage`: fills a cache before a run |
| train_check.py, config_schema.py | `featstore train check` and `featstore train schema` |
| receipt_rows.py | `featstore dispatch receipt --rows`: which of given rows a run has seen |
| device.py | batches copied to a device ahead of the loop |
| lightning_feed.py, tensorflow_dataset.py | batches for other frameworks |
| lightning_callback.py | warns of a Lightning checkpoint without a loader's state |
| prometheus.py, open_telemetry.py | metrics for others, while a loader runs |

Imports go down these lines. request/ and plan/ work without torch.
"""
