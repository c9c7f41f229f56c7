"""From files to decoded rows: a claimed split, row group by row group, filtered and shaped. Imports
no torch.
"""
