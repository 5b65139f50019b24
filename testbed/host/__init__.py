"""Services of the machine for any process: atomic file writes, locks, process identity, the interpreter.

The package also defines the files through which `testbed` and `node_agent` exchange data on one machine. Both import
this package, and it imports nothing else of either.
"""
