"""Builds the guest image of virtual machines. Agents only read the image: `testbed.host.guest_image`."""
