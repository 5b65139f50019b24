"""Bounds on values from nodes, scenarios and traces: a number beyond its bound is an error."""

from __future__ import annotations

LEAST_NODE_CORES = 0.01  # the smallest quota that the kernel's CPU bandwidth control can hold
MOST_NODE_CORES = 4096
MOST_NODE_MEMORY_MIB = 1 << 26  # 64 TiB
# Size of an image in addition to the guest's memory: the interpreter of a container and its /tmp have 64 MiB each,
# files of CRIU and libvirt and the state of devices less than 1 MiB. The 8 or 9 bytes that QEMU and Xen write with each
# page of 4096 are part of `most_image_bytes`.
MOST_BESIDE_MEMORY_MIB = 192
LEAST_AGENT_MIB = 128  # of memory of the agent itself, which uses about 60 MiB
MOST_DISK_MIB = 1 << 40  # 1 EiB
MOST_NODES = 1_000_000
MOST_PART_MIB = 1024  # of a file of journal or points: a compressed file can only be read from its beginning
MOST_RATE = 1e3  # progress of a job, relative to a dedicated node
MOST_TRACE_S = 1e9  # 31 years
LEAST_TIME_SCALE, MOST_TIME_SCALE = 1e-3, 1e6
MOST_EVENTS = 100_000_000  # of a simulation or a dry run: hours of computing
MOST_COUNT = 2**63 - 1  # of any count: the most that a column of the database holds
MOST_AMOUNT = 1e15  # of any other number, of either sign
MOST_IDLE_TURNS = 1_000_000  # of a loop in virtual time, at one instant
LEAST_PERIOD_S = 0.1  # trace seconds
LEAST_UNITS_PER_CORE_S, MOST_UNITS_PER_CORE_S = 1e-3, 1e12

CORES_EXPECTED = f"{LEAST_NODE_CORES:g} to {MOST_NODE_CORES} cores"
MEMORY_EXPECTED = f"1 to {MOST_NODE_MEMORY_MIB} MiB"


def most_image_bytes(memory_mib: int) -> int:
    """Return the largest size of an image of a guest with this memory."""
    memory = memory_mib << 20
    return memory + (memory >> 8) + (MOST_BESIDE_MEMORY_MIB << 20)
