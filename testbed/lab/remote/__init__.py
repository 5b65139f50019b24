"""Day-two operations on the machines of a lab, over ssh."""
