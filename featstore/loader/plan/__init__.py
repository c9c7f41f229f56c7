"""What is read: splits of the files, their order, and how a growing table is followed."""
