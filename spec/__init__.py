"""The specification: what must hold, as pure functions and numbered rules (standard library only)."""
