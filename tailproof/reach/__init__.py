"""Counts how far the generated cases reached."""
