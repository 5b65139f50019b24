"""The data of one run for reports: facts, stories of jobs, schedules and figures."""
