"""What a job asks for of a table, and what becomes of the rows as they are delivered."""
