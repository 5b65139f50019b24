"""Runs an operation on many machines in parallel, with one outcome per machine; a failure does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Generic, TypeVar

from testbed.errors import TestbedError, printable_lines
from testbed.lab.remote.hosts import Host, Hosts
from testbed.lab.remote.shell import Shell, log_in

_AT_ONCE = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of a machine: a value, or an error."""

    host: Host
    value: T | None
    error: str = ""


def everywhere(
    hosts: Hosts, chosen: Sequence[Host], act: Callable[[Shell], T], done: Callable[[Outcome[T]], None] = lambda _: None
) -> list[Outcome[T]]:
    """Log in to each chosen machine and call `act`; return outcomes in the order of `chosen`.

    `done` is called with each outcome as soon as the machine's operation has ended.
    """

    def on_one(host: Host) -> Outcome[T]:
        try:
            with log_in(hosts, host) as shell:
                return Outcome(host, act(shell))
        except TestbedError as error:
            return Outcome(host, None, printable_lines(str(error)))

    found: dict[str, Outcome[T]] = {}
    with ThreadPoolExecutor(min(_AT_ONCE, max(len(chosen), 1))) as pool:
        for future in as_completed([pool.submit(on_one, host) for host in chosen]):
            outcome = future.result()
            found[outcome.host.name] = outcome
            done(outcome)
    return [found[host.name] for host in chosen]
