"""References to nodes of a lab by name, or by index in the scenario."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import UserError, nearest

NodeRef = int | str


def node_index(names: Sequence[str], node: NodeRef) -> int:
    """Return the index of a node; raises `UserError` if no node has this name or index."""
    if isinstance(node, int):
        if not 0 <= node < len(names):
            raise UserError(f"node {node}: expected 0 to {len(names) - 1}, or a name of {', '.join(names)}")
        return node
    if node not in names:
        raise UserError(f"node {node!r}: expected one of {', '.join(names)}{nearest(node, names)}")
    return names.index(node)


def node_indexes(names: Sequence[str], nodes: Sequence[NodeRef], tasks: int) -> tuple[int, ...]:
    """Return the indexes of one node per task; raises `UserError` for another number of nodes."""
    if isinstance(nodes, str) or len(nodes) != tasks:
        raise UserError(f"nodes = {nodes!r} for {tasks} tasks: expected one node per task")
    return tuple(node_index(names, node) for node in nodes)
