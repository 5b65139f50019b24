"""Hardware-in-the-loop testbed for cluster scheduling research."""

__version__ = "0.1.0"
