"""Command lines and the minimal environment of guest processes."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

import psutil

import node_agent
from node_agent.drivers.procs import tether
from testbed.host.interpreter import module_argv

BIN = Path(sys.executable).parent
_ROOT = Path(node_agent.__file__).resolve().parents[1]
_PROGRAM = "node_agent.programs"


def program_argv(*arguments: str) -> list[str]:
    """Return the command line of a program."""
    return module_argv(_PROGRAM, *arguments)


def tethered(argv: list[str]) -> list[str]:
    """Return a command line whose process dies with this one."""
    return [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *argv]


def environment(control: Path | None = None) -> dict[str, str]:
    """Return the whole environment of a process, without the agent's own variables.

    `control` is the socket of the guest's control channel.
    """
    found = {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_ROOT),
        "OPENBLAS_NUM_THREADS": "1",  # numpy would make threads that are not needed
        "OMP_NUM_THREADS": "1",
    }
    if "PYTHONDONTWRITEBYTECODE" in os.environ:
        found["PYTHONDONTWRITEBYTECODE"] = os.environ["PYTHONDONTWRITEBYTECODE"]
    if control is not None:
        found["DFRS_CONTROL"] = str(control)
    return found


def rank_environment(manager: Path, rank: int, ranks: int, address: str) -> dict[str, str]:
    """Return a rank's variables beside `environment`: its process manager's socket, its rank, the node's address."""
    return {"DFRS_PMI": str(manager), "PMI_RANK": str(rank), "PMI_SIZE": str(ranks), **_mpi_network(address)}


def _mpi_network(address: str) -> dict[str, str]:
    """Return variables that make MPI use TCP on the interface of an address, as between machines.

    MPI's transport leaves out loopback interfaces, so for a lab on a loopback address the choice is left to MPI.
    """
    if ipaddress.ip_address(address).is_loopback:
        return {}
    for interface, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
    return {"UCX_TLS": "tcp,self"}
