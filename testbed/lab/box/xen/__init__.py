"""Nodes that are whole virtual machines: Xen with its control domain, dom0, in which the node's agent runs."""
