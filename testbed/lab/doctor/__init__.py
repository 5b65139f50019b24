"""What is wrong with a machine, a node or a lab, and the command that mends it."""
