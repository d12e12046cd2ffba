"""Tailproof: what a hybrid prefix cache must hold, checked on the real vLLM and the real Mooncake store."""
