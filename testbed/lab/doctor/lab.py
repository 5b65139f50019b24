"""Checks of a lab's machines over ssh: clocks, versions, MTUs, and transfer rates between nodes."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec

from testbed.errors import TestbedError
from testbed.host.interpreter import module_argv
from testbed.lab.doctor.finding import Finding, Severity
from testbed.lab.remote.agents import exec_check
from testbed.lab.remote.everywhere import everywhere
from testbed.lab.remote.hosts import Host, Hosts
from testbed.lab.remote.shell import RemoteError, Shell, log_in

_TRIES = 5
_CLOCK_WARNING_S, _CLOCK_ERROR_S = 0.05, 1.0
_PROBE_MIB = 256
_SLOW_MIB_PER_S = 50.0  # half the rate of a gigabit link: a guest of 8 GiB then takes more than 2 min 40 s to move
_PORTS = range(49152, 65536)  # for private use (RFC 6335)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Report on a machine: the findings of its own doctor, the offset of its clock to ours, and its MTU.

    The clock is `ahead_s` ahead of ours, with an error of at most `within_s`. `mtu` is that of the interface with the
    machine's address.
    """

    findings: tuple[Finding, ...]
    ahead_s: float
    within_s: float
    mtu: int


class _Received(msgspec.Struct, frozen=True):
    """The report of the receiver of a transfer."""

    bytes: int
    seconds: Annotated[float, msgspec.Meta(gt=0)]


def examine_lab(hosts: Hosts, chosen: Sequence[Host], say: Callable[[str], None]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings on each machine, with its name, and between them, without a name."""
    say("the machines")
    outcomes = everywhere(hosts, chosen, _see, lambda outcome: say(outcome.host.name))
    seen: dict[str, _Seen] = {}
    for outcome in outcomes:
        if outcome.value is None:
            yield outcome.host.name, Finding("ssh", "error", outcome.error)
        else:
            seen[outcome.host.name] = outcome.value
            yield from ((outcome.host.name, finding) for finding in outcome.value.findings)
            yield outcome.host.name, _clock(outcome.value)
    yield from (("", finding) for finding in _alike(seen))
    there = [host for host in chosen if host.name in seen]
    for one, other in pairwise([*there, there[0]] if len(there) > 1 else there):  # in a ring: each sends and receives
        say(f"{one.name} to {other.name}")
        yield "", _network(hosts, one, other)


def _see(shell: Shell) -> _Seen:
    findings = exec_check(shell).findings
    try:
        return _seen(shell, findings)
    except ValueError as error:
        raise RemoteError(shell.host.name, "clock and network", f"expected numbers, found {error}") from None


def _seen(shell: Shell, findings: tuple[Finding, ...]) -> _Seen:
    rounds = []
    for _ in range(_TRIES):
        begin_s = time.time()
        there_s = float(shell.run("date", "+%s.%N"))
        end_s = time.time()
        rounds.append(((end_s - begin_s) / 2, there_s - (begin_s + end_s) / 2))
    within_s, ahead_s = min(rounds)
    mtu = int(_wire(shell, "mtu", shell.host.address))
    if not math.isfinite(ahead_s):
        raise ValueError(f"a clock at {there_s}")
    return _Seen(findings, ahead_s, within_s, mtu)


def _clock(seen: _Seen) -> Finding:
    """Report a clock's offset; its severity depends on the part beyond the measurement error."""
    sure_s = max(0.0, abs(seen.ahead_s) - seen.within_s)
    severity: Severity = "error" if sure_s > _CLOCK_ERROR_S else "warning" if sure_s > _CLOCK_WARNING_S else "ok"
    return Finding(
        "clock against ours", severity, f"{seen.ahead_s:+.4f} s, within {seen.within_s:.4f} s",
        "" if severity == "ok" else "apt-get install chrony; or ansible-playbook site.yml --tags time",
        {"ahead_s": seen.ahead_s, "within_s": seen.within_s},
    )  # fmt: skip


def _alike(seen: dict[str, _Seen]) -> Iterator[Finding]:
    """Report whether all machines have the same version and the same MTU."""
    versions: dict[str, list[str]] = {}
    mtus: dict[str, list[str]] = {}
    for name, each in seen.items():
        found = next((one.found for one in each.findings if one.check == "testbed"), "?")
        versions.setdefault(found.partition(",")[0], []).append(name)
        mtus.setdefault(str(each.mtu) if each.mtu else "no interface has its address", []).append(name)
    for what, groups, mend in (
        ("testbed on all machines", versions, "testbed node add, or ansible-playbook site.yml --tags agent"),
        ("MTU of all machines", mtus, "ip link set dev INTERFACE mtu N"),
    ):
        words = "; ".join(f"{value} ({', '.join(names)})" for value, names in groups.items())
        alike = len(groups) <= 1
        yield Finding(what, "ok" if alike else "warning", words or "no machine answers", "" if alike else mend)


def _network(hosts: Hosts, one: Host, other: Host) -> Finding:
    what = f"network {one.name} to {other.name}"
    token, port = secrets.token_hex(16), str(secrets.choice(_PORTS))
    try:
        with log_in(hosts, one) as sender, log_in(hosts, other) as receiver, ThreadPoolExecutor(1) as beside:
            came = beside.submit(_wire, receiver, "receive", other.address, port, token=token)
            _wire(sender, "send", other.address, port, str(_PROBE_MIB), token=token)
            told = msgspec.json.decode(came.result(), type=_Received)
            rate = told.bytes / 2**20 / told.seconds
    except (TestbedError, msgspec.MsgspecError, UnicodeError, ArithmeticError) as error:
        return Finding(what, "error", str(error), "correct its address, or open the firewall between nodes")
    slow = rate < _SLOW_MIB_PER_S
    return Finding(
        what, "warning" if slow else "ok", f"{rate:.0f} MiB/s",
        "moving guests will take long: check the link (ethtool INTERFACE), cables and switch" if slow else "",
        {"mib_per_s": rate},
    )  # fmt: skip


def _wire(shell: Shell, *words: str, token: str = "") -> str:
    python = f"{shell.host.home}/venv/bin/python"
    argv = module_argv("testbed.lab.doctor.wire", *words, python=python)
    return shell.run(*argv, within_s=60.0, content=f"{token}\n".encode())
