"""Access control of a lab's bus: its certificate authorities, and the broker's access rules for each party."""
