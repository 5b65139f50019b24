"""The simulated world: the policies that drive live nodes, in virtual time, with exact event times."""
