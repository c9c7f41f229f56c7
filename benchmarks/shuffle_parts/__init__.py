"""Parts of the benchmark of shuffling."""
