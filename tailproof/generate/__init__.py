"""Draws traces, the same for the same seed."""
