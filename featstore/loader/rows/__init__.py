"""Files to decoded rows: a claimed split, row group by row group, filtered and shaped. Without
torch.
"""
