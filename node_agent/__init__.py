"""The agent of one node: it does what the controller commands, through a driver, and reports what it sees."""

SERVING = "serving node %s of lab %s"  # what an agent logs once it takes commands
