"""The agent of one node: executes the controller's commands through a driver and reports measurements."""
