"""Compiled kernels, each of which does what a pure one does, sooner. `loading` says whether they
are there.

A kernel is a C function over plain memory in a header of its own; `kernels.c` hands it Python's
buffers, without the interpreter's lock. What calls it keeps its pure path, and tests/_native holds
both together on every input.
"""
