"""Command line of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed import __version__
from testbed.bus.limits import (
    CORES_EXPECTED,
    LEAST_AGENT_MIB,
    LEAST_NODE_CORES,
    MEMORY_EXPECTED,
    MOST_DISK_MIB,
    MOST_NODE_CORES,
    MOST_NODE_MEMORY_MIB,
)
from testbed.errors import TestbedError, UserError

if TYPE_CHECKING:
    from node_agent.agent import AgentConfig
    from testbed.bus.address import BrokerAddress

_PR_SET_PDEATHSIG = 1
MOST_KEEP_S = 7 * 86400.0


def _read_options(given: Iterable[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
        if name in options:
            raise click.BadParameter(f"{name} is given twice: expected one value")
        options[name] = value
    return options


def _read_cpus(given: str | None) -> set[int]:
    if given is None:
        return set()
    here = os.sched_getaffinity(0)
    words = given.split(",")
    found = {int(word) for word in words if word.isdecimal() and len(word) < 8}  # of any machine
    if len(found) != len(words) or not found <= here:
        raise click.BadParameter(f"{given!r}: expected some of {','.join(map(str, sorted(here)))}")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--lab", default="local", help="Name of the lab; controllers use the same.")
@click.option("--node", required=True, help="Name of this node, unique in the lab.")
@click.option("--broker", default="mqtt://127.0.0.1:1883", help="Address of the message broker.")
@click.option(
    "--broker-from-stdin",
    is_flag=True,
    help="Read the broker's address, which may hold a password, from standard input.",
)
@click.option(
    "--cpus",
    type=float,
    default=1.0,
    help="CPU budget of the node, in cores.",
)
@click.option(
    "--cpu-set",
    metavar="CPU,...",
    callback=lambda _context, _parameter, given: _read_cpus(given),
    help="CPUs of the machine for the agent and its process guests; default all.",
)
@click.option("--memory-mib", type=int, default=1024, help="Memory budget of the node, in MiB.")
@click.option(
    "--driver",
    default="process",
    help="Driver of the guests: process, libvirt, xen, docker, null, or the name of a plug-in.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _parameter, given: _read_options(given),
    help="Option of the driver; may be repeated.",
)
@click.option(
    "--tls-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="TESTBED_TLS_DIR",
    help="Folder of this node's certificate (testbed ca issue DIR node NAME), for a broker at mqtts://.",
)
@click.option("--address", default="127.0.0.1", help="Address at which the other nodes reach this one.")
@click.option(
    "--state-dir", type=click.Path(path_type=Path), default=None, help="Folder of private files; default ./dfrs-NODE."
)
@click.option(
    "--image-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of saved guests; default STATE_DIR/images.",
)
@click.option(
    "--image-budget-mib",
    type=click.IntRange(min=0, max=MOST_DISK_MIB),
    default=0,
    help="Disk space of all saved guests, in MiB; 0: the whole disk.",
)
@click.option(
    "--agent-memory-mib",
    type=int,
    default=512,
    help="Memory limit of the agent without its guests; above the limit it accepts no new guests. 0: none.",
)
@click.option(
    "--keep-guests-s",
    type=float,
    default=60.0,
    help="Seconds that process guests survive after this agent was killed, until another agent adopts them.",
)
@click.option(
    "--telemetry-s",
    type=click.FloatRange(min=0.2, max=60),
    default=1.0,
    help="Seconds between samples of the node and its guests; on slow machines sampling takes CPU from the guests.",
)
@click.option(
    "--die-with-parent",
    is_flag=True,
    help="End when the process that started this one ends, and remove STATE_DIR and IMAGE_DIR then.",
)
@click.option(
    "--ephemeral",
    is_flag=True,
    help="Remove STATE_DIR and IMAGE_DIR when the agent ends, as with --die-with-parent.",
)
@click.option(
    "--no-claim",
    is_flag=True,
    help="Do not register this agent for `testbed cleanup`: the process that started it removes its remains.",
)
@click.option("--debug", is_flag=True, help="Log debug messages, and show tracebacks.")
@click.version_option(__version__, prog_name="node-agent")
def cli(
    *, lab: str, node: str, broker: str, broker_from_stdin: bool, cpus: float, cpu_set: set[int], memory_mib: int,
    driver: str,
    options: dict[str, str], tls_dir: Path | None, address: str, state_dir: Path | None, image_dir: Path | None,
    image_budget_mib: int, agent_memory_mib: int, keep_guests_s: float, telemetry_s: float, die_with_parent: bool,
    ephemeral: bool, no_claim: bool, debug: bool,
) -> None:  # fmt: skip
    """Run the agent of one node until Ctrl-C, SIGTERM, or a shutdown order; at its end it removes all guests.

    \b
    Example, two nodes on one machine:
      node-agent --node a --cpus 1.0 --memory-mib 512 &
      node-agent --node b --cpus 1.0 --memory-mib 512 &
    """  # noqa: D301  # \b keeps click from wrapping the example
    from node_agent.agent import AgentConfig  # noqa: PLC0415  # --help stays quick
    from node_agent.log_file import log_to_stderr  # noqa: PLC0415  # as above
    from testbed.bus.address import BrokerAddress  # noqa: PLC0415  # as above
    from testbed.bus.topics import check_name  # noqa: PLC0415  # as above

    log_to_stderr(logging.DEBUG if debug else logging.INFO)
    if die_with_parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    ephemeral = ephemeral or die_with_parent
    if cpu_set:
        os.sched_setaffinity(0, cpu_set)
    address_text = sys.stdin.readline().strip() if broker_from_stdin else broker
    check_size(cpus, memory_mib)
    if agent_memory_mib and not LEAST_AGENT_MIB <= agent_memory_mib <= MOST_NODE_MEMORY_MIB:
        raise UserError(f"--agent-memory-mib {agent_memory_mib}: expected 0, or {LEAST_AGENT_MIB} and more")
    if not 0 <= keep_guests_s <= MOST_KEEP_S:
        raise UserError(f"--keep-guests-s {keep_guests_s:g}: expected 0 to {MOST_KEEP_S:g} seconds")
    state = (state_dir or Path(f"dfrs-{node}")).absolute()
    images = (image_dir or state / "images").absolute()
    folders = {"--state-dir": state, "--image-dir": images}
    made: list[Path] = []
    try:
        for option, path in folders.items():
            made += make_folder(option, path)
        where = BrokerAddress.parse(address_text, tls_dir)
        config = AgentConfig(
            check_name("lab", lab), check_name("node", node), cpus, memory_mib, state, images, address,
            telemetry_s=telemetry_s, tls_dir=tls_dir if where.tls else None, image_budget_mib=image_budget_mib,
            agent_memory_mib=agent_memory_mib, keep_guests_s=keep_guests_s,
        )  # fmt: skip
        agent = _serve(config, where, driver, options)
        asyncio.run(agent if no_claim else _claim(agent, config, where, driver, options, ephemeral=ephemeral))
    finally:
        if ephemeral:
            _remove(state, images)
        _remove_empty(made)


def check_size(cpus: float, memory_mib: int) -> None:
    """Raise `UserError` for a node of a size that no machine has; nan is none."""
    if not LEAST_NODE_CORES <= cpus <= MOST_NODE_CORES:
        raise UserError(f"--cpus {cpus:g}: expected {CORES_EXPECTED}")
    if not 1 <= memory_mib <= MOST_NODE_MEMORY_MIB:
        raise UserError(f"--memory-mib {memory_mib}: expected {MEMORY_EXPECTED}")


def make_folder(option: str, path: Path) -> list[Path]:
    """Make a folder and return those that were not there, the outermost first; raises `UserError`, with none left."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        _remove_empty(missing[::-1])
        raise UserError(
            f"{option} {path}: {error.strerror}: expected a folder that this user may make and write in"
        ) from None
    return missing[::-1]


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders, the outermost first, in which nothing was left."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove(*folders: Path) -> None:
    """Remove folders, and their parents if these are empty: the process that made them may be dead."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


async def _claim(
    agent: Coroutine[Any, Any, None], config: AgentConfig, where: BrokerAddress, driver: str, options: dict[str, str],
    *, ephemeral: bool,
) -> None:  # fmt: skip
    from node_agent.claims import own_claim  # noqa: PLC0415  # --help stays quick
    from testbed.host.agents import claimed  # noqa: PLC0415  # as above

    public = replace(where, password=None, username=None).url
    own = own_claim(config.budget, config.lab, driver, options, public, config.tls_dir, ephemeral=ephemeral)
    with claimed(own):
        await agent


async def _serve(config: AgentConfig, where: BrokerAddress, driver: str, options: dict[str, str]) -> None:
    from node_agent.agent import Agent  # noqa: PLC0415  # --help stays quick
    from node_agent.drivers.make import make_driver  # noqa: PLC0415  # as above
    from testbed.bus.client import MqttBus  # noqa: PLC0415  # as above

    agent = Agent(
        config,
        make_driver(driver, options),
        lambda presence: MqttBus(where, f"agent-{config.lab}-{config.node}", presence=presence),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop)
    await agent.run()


def main() -> None:
    """Entry point `node-agent`; prints one line for an error and exits with its code."""
    try:
        cli.main(standalone_mode=False)
    except TestbedError as error:
        click.echo(f"node-agent: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
