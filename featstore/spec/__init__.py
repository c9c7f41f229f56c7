"""What features are: the spec document, its model, and the graph made of it."""
