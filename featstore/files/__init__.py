"""Files by URL: the only package that speaks with stores, through fsspec and obstore.

| module | holds |
|---|---|
| storage.py | opening, writing, linking and deleting a file; sizes and versions |
| listings.py | the files of a path, a directory or a glob |
| transfer.py | byte ranges as a stream of blocks |
| store_errors.py | errors of the clients as errors of featstore |
| credentials.py, redirects.py | what a client needs to be let in, and where it must not go |
| private_directory.py | local directories for one user, and temporary ones |
"""
