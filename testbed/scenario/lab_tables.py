"""Tables of a scenario about its lab: nodes, broker, box, timeouts, and moves of jobs between nodes."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from testbed.bus.limits import LEAST_NODE_CORES, MOST_DISK_MIB, MOST_NODE_CORES, MOST_NODE_MEMORY_MIB
from testbed.bus.migration import BRIDGE_PATTERN, HOST_PATTERN, PARTITION_PATTERN, Transport
from testbed.scenario.keys import REQUIRED, Name, Positive, Table, key

_HOST_PATTERN_ALONE = rf"^({HOST_PATTERN}|[0-9a-f:.]+)$"


class NodeMigrationTable(Table):
    """The address of a node's hypervisor for the hypervisors of other nodes, needed for live migrations."""

    host: Annotated[str, Field(pattern=_HOST_PATTERN_ALONE)] = key(
        REQUIRED, "Host name or address.", example="node-a.example"
    )
    port: Annotated[int, Field(ge=1, le=65535)] | None = key(None, "Port of libvirtd, if it is not its default port.")
    partition: Annotated[str, Field(pattern=rf"^({PARTITION_PATTERN})?$", max_length=255)] = key(
        "", "Control group of guests on this node, if it differs from that of other nodes.", example="/guests"
    )
    bridge: Annotated[str, Field(pattern=rf"^({BRIDGE_PATTERN})?$")] = key(
        "", "Bridge of guests on this node, if it differs from that of other nodes.", example="dfrs0"
    )


class NodeTable(Table):
    """A node of the lab. All nodes of a lab have the same number of CPUs and the same memory for guests."""

    name: Name = key(REQUIRED, "Name of the node.", example="node-a")
    cpus: Annotated[float, Field(ge=LEAST_NODE_CORES, le=MOST_NODE_CORES, allow_inf_nan=False)] = key(
        1.0, "CPU capacity for guests; it may be a fraction of a core.", unit="cores"
    )
    memory_mib: Annotated[int, Field(gt=0, le=MOST_NODE_MEMORY_MIB)] = key(1024, "Memory for guests.", unit="MiB")
    driver: str = key(
        "process",
        "Driver of the guests: `process`, `libvirt`, `xen`, `docker`, or the name of a plug-in. Only agents that this "
        "scenario does not start can have options of their driver.",
    )
    spawn: bool = key(
        True,
        "Whether the controller starts the agent on this machine. Otherwise the agent must be connected to the broker. "
        "`testbed lab up` starts the agents of a `[box]`, whose nodes do not have this key.",
    )
    image_budget_mib: Annotated[int, Field(ge=0, le=MOST_DISK_MIB)] = key(
        0, "Limit for images of saved guests on the disk of an agent that this scenario starts; 0: none.", unit="MiB"
    )
    cpu_set: tuple[Annotated[int, Field(ge=0, lt=MOST_NODE_CORES)], ...] = key(
        (),
        "CPUs of this machine for the guests of the node; the default is all. Under policies with shares, a node with "
        "a fraction of a core needs one CPU, so that its guests compete.",
        example=[0, 1],
    )
    migration: NodeMigrationTable | None = None


class BrokerTable(Table):
    """The message broker between controller and agents."""

    address: str = key(
        "auto",
        "`auto`: start Mosquitto if it is installed, else the embedded broker; `mosquitto` or `embedded`; the URL of "
        "an existing broker; or `$TESTBED_BROKER`, for the URL in that environment variable.",
        example="mqtts://head.example:8884",
    )
    tls_dir: Path | None = key(
        None,
        "Folder of this controller's certificate. The default is that in the environment variable TESTBED_TLS_DIR.",
        example="certificates/controllers/alice",
    )

    @property
    def kind(self) -> Literal["auto", "embedded", "mosquitto"] | None:
        """The broker to start, or None if `address` is that of an existing one."""
        for kind in ("auto", "embedded", "mosquitto"):
            if self.address == kind:
                return kind
        return None


class BoxTable(Table):
    """A lab in a box: `testbed lab up` creates the nodes on this machine, each with its own libvirtd and network."""

    guest_network: str = key(
        "10.77.0.0/16", "Private network of the guests; its last 256 addresses are those of the nodes."
    )
    link_mbit_per_s: Positive | None = key(
        None, "Bandwidth of each node's link, per direction. The default is unlimited.", unit="Mbit/s", example=1000
    )
    emulator_headroom_frac: Annotated[float, Field(ge=0, le=1)] = key(
        0.1,
        "CPU quota of a node beyond its `cpus`: caps limit virtual CPUs, and the other threads of emulators need time, "
        "too.",
        unit="part of cpus",
    )
    xen_scheduler: Literal["credit", "credit2"] = key("credit", "CPU scheduler of the hypervisor of nested Xen nodes.")

    @field_validator("guest_network")
    @classmethod
    def _private_and_large(cls, text: str) -> str:
        expected = "a private IPv4 network from /8 to /20, such as 10.77.0.0/16"
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as error:
            raise ValueError(f"{expected}: {error}") from None
        private = (ipaddress.IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
        if network.prefixlen > 20 or not any(network.subnet_of(block) for block in private):
            raise ValueError(expected)
        return text


class DeadlinesTable(Table):
    """Timeouts of the controller and of agents."""

    announce_s: Positive = key(20.0, "Time for all agents to appear at the broker.", unit="s")
    command_s: Positive = key(30.0, "Time for a command that transfers no memory.", unit="s")
    slowest_mib_per_s: Positive = key(
        10.0,
        "Lowest expected throughput: the timeout of a save, transfer or restore is its duration at this throughput.",
        unit="MiB/s",
    )
    node_silence_s: Positive = key(6.0, "Silence after which a node is suspect.", unit="s")
    node_lost_s: Positive = key(
        60.0,
        "Silence after which a node is lost. Times in which the controller was offline do not count.",
        unit="s",
    )
    lease_ttl_s: Annotated[float, Field(ge=3, allow_inf_nan=False)] = key(
        90.0,
        "Silence of the controller after which its lease ends, and agents apply `on_controller_loss` to the guests.",
        unit="s",
    )
    fence_s: Positive | None = key(
        None,
        'With `on_node_loss = "restart"`: silence of the controller after which a node destroys its guests. The '
        "default is 30 s, or twice `node_silence_s` if that is longer.",
        unit="s",
        example=30,
    )
    tries: Annotated[int, Field(ge=1, le=10)] = key(3, "Attempts of an operation before its job fails.")

    @model_validator(mode="after")
    def _suspect_before_lost(self) -> DeadlinesTable:
        if self.node_lost_s < self.node_silence_s:
            raise ValueError(f"node_lost_s = {self.node_lost_s:g}: expected at least node_silence_s")
        if self.fence_s is not None and self.fence_s < 2 * self.node_silence_s:
            raise ValueError(f"fence_s = {self.fence_s:g}: expected at least 2 * node_silence_s")
        return self

    @property
    def fence_for_s(self) -> float:
        """The seconds for which a fence permits guests to run without the controller."""
        return self.fence_s if self.fence_s is not None else max(30.0, 2 * self.node_silence_s)


class MigrationTable(Table):
    """The mechanism by which a running job moves to other nodes, and its limits."""

    mechanism: Literal["save-restore", "live", "cheaper"] = key(
        "save-restore",
        "`save-restore`: stop, save, transfer and restore. `live`: migrate running guests where nodes and memory "
        "permit, otherwise save and restore. `cheaper`: for each job the mechanism with the lower cost by the "
        "calibration in `overheads`.",
    )
    saves_at_once: Annotated[int, Field(ge=1, le=1000)] | None = key(
        None,
        "Most concurrent saves per node; saves that free memory for a waiting job come first. The default is no limit.",
        example=1,
    )
    transport: Transport = key(
        "tls",
        "Connection between hypervisors: `tls` with certificates of the lab, or unprotected `tcp`, which anybody on "
        "the network can read and change.",
    )
    budget_s_per_gib: Positive = key(
        60.0, "Most time of a live migration per GiB of guest memory, rounded up.", unit="s/GiB"
    )
    no_progress_s: Positive = key(20.0, "Time without progress after which a live migration is aborted.", unit="s")


class ImagesTable(Table):
    """Second copies of the images of saved jobs."""

    replicas: Annotated[int, Field(ge=0, le=1)] = key(
        0,
        "1: each image is copied to a second node, if one has enough disk space. A saved job whose node is lost, or "
        'whose image is damaged, continues from the copy. With `on_node_loss = "restart"` nodes also keep the last '
        "images of running jobs.",
    )
