"""Says in words and as one picture what was seen, what was needed and why."""
