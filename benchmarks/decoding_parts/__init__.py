"""The parts of `benchmarks/decoding.py`."""
