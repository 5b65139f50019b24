"""The abilities of the driver that are missing on a machine, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from node_agent.drivers.virt.tap import why_unseen

WITHOUT = {
    "mpi": "its guests have no network without a bridge",
    "native": "the programs of the guest image could not be unpacked here",
    "live": "no transport of migrations is set",
    "shares": "without a partition nothing bounds all guests of this node together",
    "traffic": "network cards and virtual CPUs of its guests cannot be observed from here",
    "waits": "the guest image has no library that counts the waits of ranks",
}


def lacks_of(there: Mapping[str, object]) -> dict[str, str]:
    """Return the reason for each ability that is missing; `there` has a true value for each one that is present."""
    lacks = {ability: why for ability, why in WITHOUT.items() if not there[ability]}
    if "mpi" in lacks:
        lacks["waits"] = lacks["traffic"] = lacks["mpi"]
    elif there["traffic"] and (why := why_unseen()):
        lacks["traffic"] = why
    return lacks
