"""Proofs: theorems about `spec`, and planted variants of it that the theorems must refute."""
