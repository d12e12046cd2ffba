"""The slow reference: cache, exact model and engine that obey the spec, written to be obviously right."""
