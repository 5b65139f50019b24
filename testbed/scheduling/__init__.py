"""Jobs and traces, scheduling policies, and the simulator."""
