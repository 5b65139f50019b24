"""Live execution: the policy's decision is compared with the actual state, planned, and carried out by agents."""
