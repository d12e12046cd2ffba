"""The only place that compares: what was seen against what the oracle expects, by families of rules."""
