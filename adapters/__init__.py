"""Adapters: each runs a trace on one system under test, inside that system's own Python."""
