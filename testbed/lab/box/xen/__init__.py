"""Nested Xen nodes: virtual machines with Xen and its control domain (dom0), in which the node's agent runs."""
