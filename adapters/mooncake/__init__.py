"""Adapter to the Mooncake store: its servers, started and stopped by us."""
