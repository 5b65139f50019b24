"""What any process needs of its machine: whole files, locks, the identity of processes, the installed interpreter.

Agents and controllers share it. It imports nothing of either.
"""
