"""The broker of a lab in a box, and the agents of its nodes, as parts of the lab."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError
from testbed.host.interpreter import module_argv
from testbed.lab.box.control_group import within
from testbed.lab.box.namespaces import enter
from testbed.lab.box.network import BRIDGE
from testbed.lab.box.parts import ProcessPart
from testbed.lab.box.processes import alive, end, last_line, mark, marked, wait_until
from testbed.lab.box.spec import BoxSpec, NodeSpec, lab_dir
from testbed.lab.box.state import Journal, broker_url_file

_BROKER_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Broker(ProcessPart):
    """The MQTT broker, which keeps its address and password when it is re-created."""

    grace_s = 8.0
    spec: BoxSpec
    journal: Journal

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"broker {self.spec.lab}"

    def there(self) -> bool:
        """See `Part.there`."""
        if not alive(self.process) or not broker_url_file(self.spec.lab).exists():
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.journal.state.broker_port), timeout=2.0):
                return True
        except OSError:
            return False

    def make(self) -> None:
        """See `Part.make`."""
        folder, url_file = lab_dir(self.spec.lab), broker_url_file(self.spec.lab)
        end(marked(self.spec.lab, "", "broker"), self.grace_s)  # a broker that does not answer or is not recorded
        url_file.unlink(missing_ok=True)
        log = folder / "broker.log"
        process = self.started(
            [
                *within(self.spec.lab),
                *module_argv("testbed.lab.box.hold_broker", "--kind", self.spec.broker),
                *("--port", str(self.journal.state.broker_port)),
                *("--state-dir", str(folder / "broker"), "--url-file", str(url_file)),
            ],
            mark(self.spec.lab, "", "broker"),
            log,
        )
        if not wait_until(lambda: url_file.exists() or not alive(process), _BROKER_WITHIN_S):
            raise RunError(f"{self.name}: not up after {_BROKER_WITHIN_S:g} s{last_line(log)}")
        if not alive(process):
            raise RunError(f"{self.name}: it ended{last_line(log)}")


@dataclass(frozen=True, slots=True)
class NodeAgent(ProcessPart):
    """The agent of a node: in the node's mount namespace, but on the machine's network, for broker and images."""

    grace_s = 15.0  # the agent destroys its guests first
    node: NodeSpec
    journal: Journal

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"agent {self.node.full_name}"

    @property
    def argv(self) -> list[str]:
        """The command line; the agent reads the broker's address from its standard input."""
        # An agent without a libvirtd creates its guests' control groups below its own, which must have no high weight.
        first = within(self.node.lab) if self.node.has_libvirtd else []
        inside = [*first, *enter(self.node, self.journal, network=False)]
        return [*inside, *module_argv("node_agent", *arguments(self.node))]

    def there(self) -> bool:
        """See `Part.there`."""
        return alive(self.process)

    def make(self) -> None:
        """See `Part.make`."""
        url = self.journal.state.broker_url  # by standard input, as every user of the machine can read arguments
        self.started(self.argv, mark(self.node.lab, self.node.name, "agent"), self.log, f"{url}\n")

    @property
    def log(self) -> Path:
        """The agent's log file."""
        return self.node.store_dir / "log" / "agent.log"


def arguments(node: NodeSpec) -> list[str]:
    """Return the command line of a node's agent."""
    cpus = ",".join(map(str, node.cpu_set))
    options = {
        "uri": "qemu:///system",  # in the node's mount namespace its own libvirtd
        "migration": node.transport,
        "partition": f"/{node.full_name}",
        "bridge": BRIDGE,
        **({"pin": cpus} if cpus else {}),  # libvirt starts the guests, which do not inherit the agent's CPU set
    }
    return [
        *("--lab", node.lab, "--node", node.name, "--driver", node.driver),
        *("--cpus", str(node.cpus), "--memory-mib", str(node.memory_mib)),
        *("--state-dir", str(node.run_dir / "agent"), "--image-dir", str(node.image_dir), "--broker-from-stdin"),
        *("--image-budget-mib", str(node.image_budget_mib)),
        "--no-claim",  # `testbed lab down` removes all leftovers
        *(("--cpu-set", cpus) if cpus and not node.has_libvirtd else ()),
        *(word for key, value in options.items() if node.has_libvirtd for word in ("--option", f"{key}={value}")),
    ]
