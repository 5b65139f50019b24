"""Version of the bus protocol in this release, and error messages about a party with another version.

The protocol version is an integer. An incompatible change increments it; a new field with a default does not, as
readers ignore unknown fields. Controller and agents work together only with the same protocol.
"""

from __future__ import annotations

from testbed import __version__

PROTOCOL = 3  # since then each node has a reply topic of its own
_MOST_CHARS = 40


def named(protocol: int, release: object) -> str:
    """Return the name of a protocol, with its release if known; both come from another party."""
    text = release if isinstance(release, str) and release.isprintable() else ""
    return f"protocol {protocol} (release {text[:_MOST_CHARS] or 'unknown'})"


def other_agent(node: str, protocol: int, release: object) -> str:
    """Return the controller's message about a node whose agent has another protocol."""
    mend = (
        "bring its agent up to date: `testbed node add` again, or ansible-playbook site.yml --tags agent"
        if protocol < PROTOCOL
        else "bring this controller up to date: pip install the release of the nodes"
    )
    return (
        f"node {node}: its agent has {named(protocol, release)}, this controller {named(PROTOCOL, __version__)}: "
        f"expected the same; {mend}"
    )


def other_controller(protocol: int, release: object) -> str:
    """Return the agent's message about a controller that has another protocol."""
    mend = "the controller" if protocol < PROTOCOL else "this agent"
    return (
        f"the controller has {named(protocol, release)}, this agent {named(PROTOCOL, __version__)}: expected the same; "
        f"bring {mend} up to date"
    )
