"""The source tier: theorems about a target's own functions, lifted from its source without importing it."""
