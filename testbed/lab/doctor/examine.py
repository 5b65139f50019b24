"""Runs all checks of one machine in sequence, as some of them measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from testbed import __version__
from testbed.bus.address import BrokerAddress
from testbed.errors import UserError
from testbed.lab.doctor import certificates, hypervisors, leftovers, machine, services, storage, suspicious
from testbed.lab.doctor.finding import Check, Finding

_EXTRAS = {"libvirt": "libvirt-python", "docker": "docker", "secure": "cryptography", "simulate": "numba"}


def versions() -> Iterator[Finding]:
    """Report the testbed's version and the installed extras."""
    there = []
    for extra, package in _EXTRAS.items():
        try:
            there.append(f"{extra} ({package} {metadata.version(package)})")
        except metadata.PackageNotFoundError:
            continue
    yield Finding("testbed", "ok", f"{__version__}, extras: {', '.join(there) or 'none'}")


def examine(
    folder: Path, broker: BrokerAddress | None = None, influx_url: str | None = None,
    say: Callable[[str], None] = lambda _name: None, certificate_folders: Sequence[Path] = (),
) -> Iterator[Finding]:  # fmt: skip
    """Yield the findings of each check; `say` is called with the name of a check before it begins.

    A check that raises an error is a finding, too. `certificate_folders` are checked in addition to the known ones.
    """
    checks: list[tuple[str, Check]] = [
        ("versions", versions), ("kernel", machine.kernel), ("control groups", machine.control_groups),
        ("processors", machine.processors), ("memory", machine.memory), ("clock", machine.clock),
        ("storage", partial(storage.storage, folder)), ("QEMU and KVM", hypervisors.qemu_and_kvm),
        ("libvirt", hypervisors.libvirt), ("Xen", hypervisors.xen), ("Docker", hypervisors.docker),
        ("mosquitto", services.mosquitto),
        ("certificates", partial(certificates.certificates, certificate_folders)), ("labs", leftovers.labs),
        ("leftovers", leftovers.agents), ("suspicious acts", suspicious.agents),
    ]  # fmt: skip
    yield from _all(checks, say)
    yield from examine_services(broker, influx_url, say)


def examine_services(
    broker: BrokerAddress | None, influx_url: str | None, say: Callable[[str], None]
) -> Iterator[Finding]:
    """Yield the findings about the given services."""
    checks: list[tuple[str, Check]] = []
    if broker is not None:
        checks.append(("broker", partial(services.broker, broker)))
    if influx_url is not None:
        checks.append(("InfluxDB", partial(services.influxdb, influx_url)))
    yield from _all(checks, say)


def examine_lab_here(
    lab: str, broker_log: Path | None, runs: Path, say: Callable[[str], None]
) -> Iterator[Finding]:  # fmt: skip
    """Yield the suspicious acts recorded by a lab's broker on this machine and by its runs in a folder."""
    yield from _all(suspicious.checks_of(lab, broker_log, runs), say)


def _all(checks: Iterable[tuple[str, Check]], say: Callable[[str], None]) -> Iterator[Finding]:
    for name, check in checks:
        say(name)
        yield from _safely(name, check)


def _safely(name: str, check: Check) -> Iterable[Finding]:
    try:
        return list(check())
    except UserError as error:
        return [Finding(name, "error", str(error))]
    except Exception as error:  # noqa: BLE001  # an unforeseen fault of the machine
        return [Finding(name, "error", f"the check itself failed: {type(error).__name__}: {error}")]
