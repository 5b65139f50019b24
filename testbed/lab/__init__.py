"""Live nodes and jobs on them; the public Python API of a lab."""
