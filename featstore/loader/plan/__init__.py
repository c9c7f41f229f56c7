"""What is read: the request, checked against the table, its files, their splits and their order."""
