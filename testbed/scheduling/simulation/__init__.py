"""The simulator: runs the policies of live nodes in virtual time, with exact event times."""
