"""How a feature is computed: pure functions on Arrow arrays, one family a file."""
