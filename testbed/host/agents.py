"""Registry of this user's agents on this machine: one claim file per agent. Also the log line of a serving agent.

An agent claims its node for as long as it runs. The claim of a dead agent gives `testbed cleanup` the driver of its
remaining guests and the paths of its files.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from testbed.host.process_identity import boot_id, start_ticks
from testbed.host.whole_files import write_whole

SERVING = "serving node %s of lab %s"  # the log line of an agent that accepts commands
_log = logging.getLogger(__name__)


class Claim(msgspec.Struct, frozen=True):
    """The claim of an agent. A cleanup removes the folders of an `ephemeral` agent, else only the guests' files."""

    lab: str
    node: str
    driver: str
    options: dict[str, str]
    cpus: float
    memory_mib: int
    state_dir: str
    image_dir: str
    address: str
    broker: str  # without user and password
    tls_dir: str  # of its certificate, or empty
    ephemeral: bool
    pid: int
    started_ticks: int
    boot: str

    @property
    def name(self) -> str:
        """Lab and node."""
        return f"{self.lab}/{self.node}"

    @property
    def file(self) -> str:
        """File name with the process id, as agents of one name may run one after another, or at once in two labs."""
        return f"{self.lab}.{self.node}.{self.pid}.json"

    @property
    def alive(self) -> bool:
        """Whether this agent runs."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.started_ticks


def folder() -> Path:
    """Return the folder of this user's claims; it survives a restart of the machine, as images do.

    DFRS_CLAIMS_DIR in the environment overrides it.
    """
    if given := os.environ.get("DFRS_CLAIMS_DIR"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/dfrs-agent/claims")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "dfrs-agent/claims"


def claims() -> list[tuple[Path, Claim]]:
    """Return all claims with their files, sorted by file name; unreadable claims are logged and skipped."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(folder().glob("*.json")):
            try:
                found.append((path, msgspec.json.decode(path.read_bytes(), type=Claim)))
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("%s: %s", path, error)
    return found


@contextlib.contextmanager
def claimed(claim: Claim) -> Iterator[None]:
    """Claim a node inside the block; a failed block leaves the claim, as it may leave guests or files behind.

    Claims of dead agents with the same state folder are removed with the claim of their successor, which has removed
    their leftovers.
    """
    path = folder() / claim.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, msgspec.json.encode(claim), durable=False)
    except OSError as error:  # a lab works without claims: only a cleanup reads them
        _log.warning("%s: %s: `testbed cleanup` will miss leftovers if this agent is killed", path, error.strerror)
    yield
    path.unlink(missing_ok=True)
    for other, earlier in claims():
        if earlier.state_dir == claim.state_dir and not earlier.alive:
            other.unlink(missing_ok=True)


class Sweep(msgspec.Struct, frozen=True):
    """Request to `python -m node_agent.leftovers`, one line of JSON: the agent whose leftovers to remove or list."""

    claim: Claim
    dry_run: bool


class Swept(msgspec.Struct, frozen=True):
    """Reply to a `Sweep`, one line of JSON: removed leftovers, and those that could not be removed, with reasons."""

    there: list[str]
    failed: list[tuple[str, str]]
