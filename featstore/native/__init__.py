"""Compiled kernels, and Parquet at the level of bytes: Thrift, and footers that are checked before
Arrow sees them. Each kernel computes the same as a pure counterpart in Python, faster. `loading`
imports them if they were built.

A kernel is a C function over plain memory, in a header of its own. `kernels.c` passes it the
buffers of Python objects, and releases the interpreter's lock while it runs. Callers keep their
pure path, and tests/native compares both on random input.
"""
