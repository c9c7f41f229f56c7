"""From a table and a selection to batches of tensors.

| file | holds |
|---|---|
| loader.py | `FeatureLoader`: plan, dispatch, staging, reading and batches meet here |
| config.py | a training config (YAML or mapping) to the loader's arguments |
| request.py | the arguments, checked against the table's schema |
| tensors.py, packed.py, kjt.py | `Jagged`, `Batch`; a batch in a few buffers; ids for TorchRec |
| filtering.py, pruning.py, negatives.py | which rows: statistics, the filter's columns first, negatives drawn |
| shaping.py, dtypes.py | a slot's options applied to its values |
| transform.py, watch.py | a user's function over batches; who writes to them |
| bad_files.py, stats.py, metering.py, pacing.py, progress.py | what is told of a run |
| one_buffer.py, shared.py | a batch in one buffer; one that goes to another process |
| stream.py, budget.py | a split to windows of rows; several open splits interleaved; bytes held at once |
| blocks.py, assembly.py, gathered.py | decoded rows in the order of delivery; made of windows; gathered into batches |
| shuffle.py | windows and permutations |
| batching.py | blocks to exact batches and the progress they stand for |
| pipeline.py | the threads ahead of the consumer, and what waits between them |
| device.py | batches on a device, ahead of the loop |
| tail.py, agreement.py, padding.py | equally many steps on all ranks |
| ordering.py, follow.py, listing.py, matching.py, splitting.py, boundaries.py | which splits, in which order, cut where |
| delivery.py, claims.py, segment.py | what is pending, given and delivered; what the store is to be told of it |
| reporting.py, endings.py | what the dispatch store is told; what a pass says at its end |
| place.py, passes.py | which worker; which store, which keys, which epoch |
| iteration.py, consumer.py | one pass over the epochs; what the training loop iterates |
| state.py, shares.py | positions as JSON, merged over workers; by the workers themselves |
"""
