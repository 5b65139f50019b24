"""Jobs and their traces, the policies that place them, and the simulated world."""
