"""Known faults of targets: each is written once, as a file of facts and a wrong variant of the spec."""
