"""The agent of one node: it does what the controller commands, through a driver, and reports what it sees."""
