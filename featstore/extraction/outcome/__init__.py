"""What a run leaves: files that it wrote before its commit, and what they replaced."""
