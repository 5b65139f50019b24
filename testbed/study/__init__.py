"""Analysis of runs: calibration, comparison with simulation, checks of hypervisors, reports."""
