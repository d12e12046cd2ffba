"""Systems under test: their names, their environments, and the processes that they run in."""
