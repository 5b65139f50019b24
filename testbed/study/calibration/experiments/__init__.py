"""The experiments, one module each; `registry` finds them by name."""
