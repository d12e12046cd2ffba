"""Quirks: wrong variants of the spec, one for each known fault, each in the room of what it gets wrong."""
