"""The lab in a box: several independent physical nodes on one machine."""
