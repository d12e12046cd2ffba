"""Planted faults: of the reference, and of copies of the real vLLM."""
