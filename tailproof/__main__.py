"""Runs the command line as `python -m tailproof`."""

from tailproof.cli import main

main()
