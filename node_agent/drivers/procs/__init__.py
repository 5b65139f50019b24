"""Parts of the process driver."""
