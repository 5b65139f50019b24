"""What is learnt from runs: calibration, comparison with simulation, checks of hypervisors, reports."""
