"""Runs the command line as `python -m tailproof`."""

from tailproof.cli.main import main

main()
