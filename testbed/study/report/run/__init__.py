"""What a run did, as facts, stories, schedules and figures."""
