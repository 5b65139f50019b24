"""Access to the bus of a lab: its own certificates, and the broker's rules for each of them."""
