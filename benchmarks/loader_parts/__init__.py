"""The parts of `benchmarks/loader.py`."""
