"""The parts of `benchmarks/size.py`."""
