"""The agent of a nested Xen node, which runs in the control domain; the process outside is its ssh client."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from testbed.errors import RunError
from testbed.lab.box.processes import alive, end, mark, marked
from testbed.lab.box.services import NodeAgent
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.xen.dom0 import AGENT_FILES, AGENT_STATE, BRIDGE, OUTSIDE, SCRIPT, Dom0

_AGENT_GRACE_S = 20.0  # the agent destroys its guests first
_HERE = "127.0.0.1"
_TELEMETRY_S = 5  # a period of 1 s took half of an emulated processor from the guests


@dataclass(frozen=True, slots=True)
class XenAgent(NodeAgent):
    """The agent in one node's control domain; the recorded process is the ssh client, which ends with the agent."""

    grace_s = 2.0  # of the ssh client

    def make(self) -> None:
        """See `Part.make`."""
        dom0 = Dom0(self.node)
        end(marked(self.node.lab, self.node.name, "agent"), self.grace_s)
        dom0.end_agent(_AGENT_GRACE_S)
        argv = dom0.agent_command(arguments(self.node))
        url = as_seen_inside(self.journal.state.broker_url)  # by standard input, as all users can read arguments
        self.started(argv, mark(self.node.lab, self.node.name, "agent"), self.log, f"{url}\n")

    def remove(self) -> list[str]:
        """See `Part.remove`; the agent destroys its guests."""
        if self.process is None or not alive(self.process):
            return []
        with contextlib.suppress(RunError):  # a machine that does not answer is removed next, with its agent
            Dom0(self.node).end_agent(_AGENT_GRACE_S)
        end([self.process], self.grace_s)
        return [self.name]


def as_seen_inside(url: str) -> str:
    """Return the URL by which the control domain reaches a broker on this machine's loopback interface.

    Seen from the control domain the broker is on another machine, but QEMU forwards the traffic without a network.
    """
    scheme, _, rest = url.partition("://")
    before, at, place = rest.rpartition("@")
    host, colon, port = place.partition(":")
    if scheme != "mqtt" or host != _HERE:
        raise RunError(f"the broker is at {scheme}://{place}: expected mqtt://{_HERE}, which nested nodes reach")
    return f"insecure+{scheme}://{before}{at}{OUTSIDE}{colon}{port}"


def arguments(node: NodeSpec) -> list[str]:
    """Return the command line of a node's agent."""
    return [
        *("--lab", node.lab, "--node", node.name, "--driver", node.driver),
        *("--cpus", str(node.cpus), "--memory-mib", str(node.memory_mib), "--address", node.host),
        *("--state-dir", AGENT_STATE, "--image-dir", "/var/lib/dfrs/images", "--broker-from-stdin"),
        *("--image-budget-mib", str(node.image_budget_mib)),
        "--no-claim",  # leftovers of the agent end with the machine
        *("--telemetry-s", str(_TELEMETRY_S)),
        *(
            "--option",
            f"bridge={BRIDGE}",
            "--option",
            f"script={SCRIPT}",
            "--option",
            f"image={AGENT_FILES}/guest-image",
        ),
    ]
