"""From Parquet files to columns in numpy arrays.

| file | holds |
|---|---|
| open_file.py | an open data file with its checked footer |
| file_columns.py | which columns of a file a selection reads |
| spans.py | byte ranges of column chunks: to stage them, and to check that they are intact |
| kept.py | files that are read in place, of which each column chunk is fetched only once |
| reader.py | row groups as Arrow columns under the names of the table |
| aligned.py | a data file and its slot groups' files, read as one |
| histories.py | rows with histories: ranges of lists that rows share |
| pages.py | column chunks that the compiled kernels decode |
| buffers.py | columns of a file in the types of the table; as arrays of values and offsets |
| gather.py | rows of decoded columns in another order |
| tables.py | row groups as Arrow tables with nulls, for notebooks and SQL |
"""
