"""Who may talk on the bus of a lab: its own certificates, and what the broker lets each of them do."""
