"""featstore's loader as a plugin of the DLIO benchmark, beside DLIO's own readers: as many rows of
the DLRM shape of MLPerf Storage v3, in batches of 2,048, of one epoch.

- nothing: DLIO is given one batch again and again, so its own loop is all that is left
- featstore, featstore shuffled: `dlio/loader.py`, over Parquet of 200 columns of which 40 are read
- parquet: a reader of DLIO's interface, which gives one sample for a call, over pyarrow
- npz, hdf5, csv, indexed_binary: DLIO's readers, over the 40 columns alone
- indexed_binary unchanged: the last one with DLIO's own index of samples, over 8,192 rows

Each runs in turn, without a computation (how many rows a second), and with an accelerator simulated
that takes 2.66 million rows a second, of which DLIO reports the utilization (AU). All must have read
the same number of rows.

DLIO is installed into an environment of its own below DIR, once.

    python benchmarks/dlio.py [--small] [--side NAME ...] [--repeats N] [--directory DIR]
"""

import sys

from dlio.comparison import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
