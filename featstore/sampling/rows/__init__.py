"""The samples of a table: which rows they are, where an id is, and rows as a batch."""
