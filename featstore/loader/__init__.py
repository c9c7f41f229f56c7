"""From a table and a selection to batches of tensors.

| room | holds |
|---|---|
| plan/ | what is read: the request, the files, their splits and orders |
| rows/ | files to decoded rows: row groups of claimed splits, filtered and shaped |
| batches/ | rows to batches: put in order, gathered, cut, transformed |
| run/ | one iteration over epochs: claims, threads, delivery, state, the end |
| mix/ | batches of several tables, drawn by weight |
| feature_loader.py | `FeatureLoader`, where plan, dispatch, staging and the rooms meet |
| stage.py | `featstore stage`: fills a cache before a run |
| train_check.py, config_schema.py | `featstore train check` and `featstore schema train` |
| lightning_feed.py, numpy_feed.py, tensorflow_dataset.py | batches for other frameworks |
| lightning_callback.py | warns of a Lightning checkpoint without a loader's state |
| on_stats.py, prometheus.py | metrics for others, while a loader runs |
| stats.py, bad_files.py, cleanup.py | what is counted, skipped and closed |

Imports go from run/ down to plan/. plan/ and rows/ work without torch.
"""
