"""The live world: what the policy decided is compared with what is there, planned, and done by node agents."""
