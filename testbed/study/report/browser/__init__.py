"""A run in the browser, live: a process of its own that follows run directories and serves one page."""
