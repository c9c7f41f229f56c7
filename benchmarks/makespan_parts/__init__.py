"""The parts of `benchmarks/dispatch_makespan.py` that run the real loader."""
