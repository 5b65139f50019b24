"""The built-in experiments, one per module; `registry` finds them by name."""
