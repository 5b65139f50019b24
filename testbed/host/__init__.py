"""Services of the machine for any process: whole files, locks, the identity of processes, the interpreter.

Also the files that the packages `testbed` and `node_agent` leave there for each other. Both import this package, and it
imports nothing else of either.
"""
