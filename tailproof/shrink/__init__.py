"""Makes a failing trace small and plain."""
