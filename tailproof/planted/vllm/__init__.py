"""Planted faults of the real vLLM: single-place changes to a copy of its source, made on the fly.

Operators make most of them out of the source as it is installed, a table has the rest. No line of vLLM stands
here.
"""
