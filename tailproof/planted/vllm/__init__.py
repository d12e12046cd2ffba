"""Planted faults of the real vLLM: single-place changes to a copy of its source, made on the fly.

A place is addressed by file, function and the shape of its syntax, so nothing of vLLM stands here.
"""
