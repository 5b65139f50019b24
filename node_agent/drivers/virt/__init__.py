"""Guests as virtual machines under libvirt: KVM where a guest boots under it, else QEMU's emulation."""
