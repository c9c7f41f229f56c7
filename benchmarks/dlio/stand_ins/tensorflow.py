"""Stands for tensorflow, which DLIO 2.0.0 imports when it starts, and uses only for workloads of
`framework: tensorflow` and for its profiler of that name. None of ours is one.
"""
