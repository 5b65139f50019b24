"""Comparison of a CPU cap, or a share, that was read back with the requested one."""

from __future__ import annotations

_SLACK_CORES = 0.01  # the kernel's least quota is 1 ms in 100 ms
_SLACK_FRAC = 0.01  # Xen rounds caps to a percent of a core
_SHARE_SLACK_FRAC = 1e-4  # of the node: the greatest weight of control groups of version 2 is 10,000


def same_cap(found_cores: float, wanted_cores: float, most_cores: float) -> bool:
    """Return whether the cap in force equals the requested one within the slack.

    `most_cores` is the most that the guest can use: a cap at or above it has no effect, and is read back as
    `most_cores`.
    """
    wanted_cores = min(wanted_cores, most_cores)
    return abs(min(found_cores, most_cores) - wanted_cores) <= _SLACK_CORES + _SLACK_FRAC * wanted_cores


def same_share(found_cores: float, wanted_cores: float, node_cores: float) -> bool:
    """Return whether the share in force equals the requested one within the resolution of weights on the node."""
    return abs(found_cores - wanted_cores) <= _SHARE_SLACK_FRAC * node_cores
