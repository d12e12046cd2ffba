"""The command line: options, one function per command, and how each report is shown."""
