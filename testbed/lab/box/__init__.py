"""The lab in a box: nodes on one machine, each with its own network and capacity, as if on separate machines."""
