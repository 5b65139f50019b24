"""One run as facts, stories, schedules and figures."""
