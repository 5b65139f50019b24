"""What any process needs of its machine: whole files, locks, the identity of processes, the installed interpreter.

Also what the packages `testbed` and `node_agent` leave there for each other. Both share it, and it imports nothing else
of either.
"""
