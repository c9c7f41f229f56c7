"""What is read: the request, checked against the table; its files, cut into splits; their order."""
