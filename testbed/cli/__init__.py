"""Command line: thin; parse, call, print."""
