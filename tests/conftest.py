"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# the same examples at every run and no deadline: a test must not depend on luck or on the machine's load
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("deterministic")
