"""What the signs of a table mean: in profiles, in rows, and one by one."""
