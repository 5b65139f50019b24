"""On PYTHONPATH it hides numba: small traces are simulated sooner than their loops are compiled."""

import sys

sys.modules["numba"] = None  # type: ignore[assignment]  # how the import system marks what is not to be found
