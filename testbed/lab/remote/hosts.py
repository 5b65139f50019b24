"""The hosts file: the machines of a lab, with the ssh address of each and the settings of its agent.

lab = "lab-1"
broker = "mqtts://192.0.2.1:8883"
[[hosts]]
name = "n1"
ssh = "root@192.0.2.11"
address = "192.0.2.11"
cpus = 8.0
memory_mib = 32000
[head]                      # the broker's machine, for `testbed ca revoke`
ssh = "root@192.0.2.1"
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from testbed.bus.limits import LEAST_NODE_CORES, MOST_DISK_MIB, MOST_NODE_CORES, MOST_NODE_MEMORY_MIB
from testbed.errors import UserError, nearest
from testbed.host.whole_files import write_whole
from testbed.toml_files import first_mistake

DEFAULT_FILE = Path("hosts.toml")


def _like(pattern: str, expected: str) -> AfterValidator:
    """Return a validator that requires the whole text to match `pattern`; `expected` describes the form to people.

    The values are written into systemd units and command lines. So they must not contain a blank, a quote, a backslash,
    a dollar sign or a control character; a percent sign is doubled in units.
    """
    whole = re.compile(pattern)

    def check(value: str) -> str:
        if not whole.fullmatch(value):
            raise PydanticCustomError("like", "expected {expected}", {"expected": expected})
        return value

    return AfterValidator(check)


_FOLDER = r"(/(?!\.\.?(/|\Z))[A-Za-z0-9._-]*)+"
_IN_URL = r"([A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+"
Name = Annotated[
    str, _like(r"[a-z0-9][a-z0-9-]{0,62}", "1 to 63 of a-z, 0-9 and -, beginning with a letter or a digit")
]
# restricted so that no name can inject a shell command or an option of ssh
Target = Annotated[
    str,
    _like(r"([a-z_][a-z0-9_-]{0,31}@)?[A-Za-z0-9][A-Za-z0-9.:-]{0,253}", "a name or an address, as root@192.0.2.11"),
]
Address = Annotated[str, _like(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,253}", "a name or an address, as 192.0.2.11")]
Broker = Annotated[
    str,
    _like(
        rf"(mqtt|mqtts|insecure\+mqtt)://({_IN_URL}(:{_IN_URL})?@)?([A-Za-z0-9][A-Za-z0-9.-]{{0,253}}|\[[0-9A-Fa-f:.]+\])"
        r"(:[0-9]{1,5})?/?",
        "mqtts://[user[:password]@]host[:port], other characters of user and password than a-z, A-Z, 0-9, ., _, ~ and "
        "- as %40 for @",
    ),
]
OptionName = Annotated[str, _like(r"[a-z][a-z0-9_]*", "a-z, 0-9 and _, beginning with a letter")]
OptionValue = Annotated[str, _like(r"[A-Za-z0-9_:/.,@%+=?&-]+", "a word of a-z, A-Z, 0-9 and _:/.,@%+=?&-")]
Folder = Annotated[str, _like(_FOLDER, "an absolute path of a-z, A-Z, 0-9, ., _ and -, without .. and .")]
FolderOrNone = Annotated[
    str, _like(f"({_FOLDER})?", "an absolute path of a-z, A-Z, 0-9, ., _ and -, without .. and ., or nothing")
]
Word = Annotated[str, _like(r"[ -~]+", "a word of printable ASCII characters")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Host(_Table):
    """A node's machine. `service` is the service manager of its agent: systemd, or our script without systemd."""

    name: Name
    ssh: Target
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    address: Address
    cpus: Annotated[float, Field(ge=LEAST_NODE_CORES, le=MOST_NODE_CORES, allow_inf_nan=False)]
    memory_mib: Annotated[int, Field(gt=0, le=MOST_NODE_MEMORY_MIB)]
    image_budget_mib: Annotated[int, Field(ge=0, le=MOST_DISK_MIB)] = 0
    driver: Name = "process"
    options: dict[OptionName, OptionValue] = {}  # of the driver
    home: Folder = "/opt/dfrs-testbed"
    service: Literal["systemd", "script"] = "systemd"
    agent_memory_mib: Annotated[int, Field(ge=0, le=MOST_NODE_MEMORY_MIB)] = 512  # of the agent itself; 0: no bound
    certificate: FolderOrNone = ""  # folder, as the next two; an empty value is a subfolder of `home`
    state_dir: FolderOrNone = ""
    image_dir: FolderOrNone = ""

    @property
    def certificate_folder(self) -> str:
        """The folder of the node's certificate."""
        return self.certificate or f"{self.home}/certificate"

    @property
    def state_folder(self) -> str:
        """The folder of the agent's private files."""
        return self.state_dir or f"{self.home}/state"

    @property
    def image_folder(self) -> str:
        """The folder of the agent's saved guests."""
        return self.image_dir or f"{self.home}/images"

    @property
    def user(self) -> str | None:
        """The login user; None for the user in ssh's own configuration."""
        user, at, _ = self.ssh.rpartition("@")
        return user if at else None

    @property
    def machine(self) -> str:
        """The machine's name or address."""
        return self.ssh.rpartition("@")[2]


class Head(_Table):
    """The broker's machine: folders of its certificates and access rules, and the command that reloads both."""

    ssh: Target
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    certificates: Folder = "/etc/mosquitto/dfrs/certificates"
    rules: Folder = "/etc/mosquitto/dfrs"
    reload: Annotated[tuple[Word, ...], Field(min_length=1)] = ("systemctl", "reload", "mosquitto")

    @property
    def host(self) -> Host:
        """The machine as a `Host` for ssh logins, although it is not a node."""
        machine = self.ssh.rpartition("@")[2]
        return Host(name="head", ssh=self.ssh, port=self.port, address=machine, cpus=1.0, memory_mib=1)


class Hosts(_Table):
    """All machines of a lab. `known_hosts` is the file of their host keys, `identity` our key; by default ssh's own."""

    lab: Name
    broker: Broker
    known_hosts: Path | None = None
    identity: Path | None = None
    hosts: tuple[Host, ...] = ()
    head: Head | None = None

    def choose(self, names: tuple[str, ...]) -> tuple[Host, ...]:
        """Return the hosts of these names, or all hosts if there are no names; raises `UserError`."""
        known = {host.name: host for host in self.hosts}
        for name in names:
            if name not in known:
                raise UserError(
                    f"node {name!r}: expected one of {', '.join(known) or '(none yet)'}{nearest(name, known)}"
                )
        return tuple(known[name] for name in names) if names else self.hosts


def load_hosts(path: Path) -> Hosts:
    """Read a hosts file; raises `UserError` with key and value."""
    try:
        return read_hosts(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the lab's machines: {error.strerror}; begin with testbed node add"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None


def read_hosts(text: str, path: Path) -> Hosts:
    """Parse `text`, the content of the file at `path`; raises `UserError` with key and value."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None
    return check_hosts(data, path)


def check_hosts(data: dict[str, object], path: Path) -> Hosts:
    """Validate the content of the file at `path`; raises `UserError` with key and value."""
    try:
        hosts = Hosts.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, Hosts, error) from None
    names = [host.name for host in hosts.hosts]
    if len(set(names)) != len(names):
        raise UserError(f"{path}: hosts: expected different names, found {sorted(names)}")
    return hosts


def save_hosts(hosts: Hosts, path: Path) -> None:
    """Write the file atomically."""
    data = hosts.model_dump(mode="json", exclude_defaults=True)
    data["hosts"] = [host.model_dump(mode="json", exclude_defaults=True) for host in hosts.hosts]
    write_whole(path, tomli_w.dumps(data))
