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
| blocks.py | decoded rows of one split, in the order of delivery |
| stream.py | a split to its blocks; several open splits interleaved |
| shuffle.py | windows and permutations |
| batching.py | blocks to exact batches and the progress they stand for |
| pipeline.py | the decode thread and its bounded queue |
| place.py, passes.py | which worker; which store, which keys, which epoch |
| iteration.py, consumer.py | one pass over the epochs; what the training loop iterates |
| state.py, shares.py | positions as JSON, merged over workers; by the workers themselves |
"""
