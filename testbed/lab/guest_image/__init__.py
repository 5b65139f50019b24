"""The guest image of virtual machines: how it is made. Agents only read it: `testbed.host.guest_image`."""
