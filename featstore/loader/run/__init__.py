"""One iteration over epochs: which splits are claimed, what is delivered, and how it ends."""
