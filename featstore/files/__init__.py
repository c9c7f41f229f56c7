"""Files by URL: the only package that talks to file stores, through fsspec and obstore.

| module | holds |
|---|---|
| storage.py | opening, writing, linking and deleting a file; sizes and versions |
| looks.py | what is at a local path; a failed look is an error |
| walking.py | directories of any store, one listing at a time |
| listings.py | the files of a path, a directory or a glob |
| table_marks.py | what makes a directory a table of Delta, Iceberg or another format |
| transfer.py | byte ranges as a stream of blocks |
| store_errors.py | translates errors of the clients to errors of featstore |
| credentials.py | finds credentials, and keeps them from other hosts |
| private_directory.py | local directories for one user, and temporary ones |
"""
