"""Brings a lab up: creates missing parts, and waits until all agents are online."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from testbed.bus.mosquitto import free_port
from testbed.errors import RunError, TestbedError, UserError
from testbed.lab.box.down import remove_lab
from testbed.lab.box.online import agents_online
from testbed.lab.box.order import make_in_order
from testbed.lab.box.plan import agent_of, layers_of
from testbed.lab.box.processes import last_line
from testbed.lab.box.spec import BoxSpec
from testbed.lab.box.state import BoxState, Journal, check_distinct, find
from testbed.lab.box.xen.hardware import OWN_MIB

_ONLINE_WITHIN_S = 30.0
_NESTED_ONLINE_WITHIN_S = 120.0  # an emulated processor takes long to load the agent's code


def check_machine(spec: BoxSpec, say: Callable[[str], None]) -> None:
    """Raise `UserError` if the nodes need more memory than the machine has; report risks for measurements."""
    machine_mib = psutil.virtual_memory().total >> 20
    memory_mib = sum(node.memory_mib + (OWN_MIB if node.is_nested else 0) for node in spec.nodes)
    if memory_mib > machine_mib:
        raise UserError(f"lab {spec.lab}: its nodes take {memory_mib} MiB together, this machine has {machine_mib}")
    cores, cpus = os.cpu_count() or 1, sum(node.cpus for node in spec.nodes)
    if cpus > cores:
        say(f"note: the nodes have {cpus:g} cores together, this machine {cores}: they will slow each other down")


def bring_up(spec: BoxSpec, scenario: Path, say: Callable[[str], None]) -> tuple[BoxState, list[str]]:
    """Create the missing parts of a lab; return its state, and the names of the created parts.

    After a failure or Ctrl-C the parts of a new lab are removed again. A lab that was up is left unchanged then, as it
    may have guests.
    """
    check_machine(spec, say)
    check_distinct(spec.lab)
    known = find(spec.lab)
    if known is not None and known.spec != spec:
        raise UserError(
            f"lab {spec.lab} is there already with other nodes or settings, from {known.scenario}: "
            f"`testbed lab down {spec.lab}` first, or give the scenario another lab"
        )
    was_up = known is not None and known.phase == "up"
    if known is None:
        left = remove_lab(spec.lab, say).failures
        if left:
            raise RunError(f"lab {spec.lab}: leftovers of an earlier lab cannot be removed: {'; '.join(left)}")
        known = BoxState(spec, str(scenario.resolve()), free_port())
    journal = Journal(replace(known, scenario=str(scenario.resolve())))
    try:
        if not was_up:
            journal.phase("making")
        made = make_in_order(layers_of(spec, journal, say), journal, say)
        _wait_for_agents(journal, say)
        journal.phase("up")
    except BaseException as error:
        if was_up:
            if isinstance(error, TestbedError):
                raise RunError(f"{error}; the lab stays as it is: `testbed lab down {spec.lab}` removes it") from error
            raise
        say("not complete: removing its parts")
        left = remove_lab(spec.lab, say).failures
        if left and isinstance(error, TestbedError):
            raise RunError(f"{error}; not removed: {'; '.join(left)}") from error
        raise
    return journal.state, made


def _wait_for_agents(journal: Journal, say: Callable[[str], None]) -> None:
    state = journal.state
    agents = {node.name: agent_of(node, journal) for node in state.nodes}
    within_s = _NESTED_ONLINE_WITHIN_S if any(node.is_nested for node in state.nodes) else _ONLINE_WITHIN_S

    def all_live() -> bool:
        return all(agent.there() for agent in agents.values())

    online = asyncio.run(agents_online(state.broker_url, state.lab, agents, within_s, all_live))
    for name, agent in agents.items():
        if not agent.there():
            raise RunError(f"{agent.name}: it ended{last_line(agent.log)}")
        if name not in online:
            raise RunError(f"{agent.name}: not announced after {within_s:g} s{last_line(agent.log)}")
    say(f"{len(agents)} agents online")
