"""Programs around the library: the command line, Spark jobs, packing, the demo."""
