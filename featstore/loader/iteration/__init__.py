"""One iteration over epochs: what is claimed, what is delivered, and how it ends."""
