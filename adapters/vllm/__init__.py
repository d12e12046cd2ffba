"""The adapter for vLLM: the real scheduler and cache manager, without a model."""
