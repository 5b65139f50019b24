"""Errors of drivers, and of agents about them."""

from __future__ import annotations

from testbed.errors import FailureCode, TestbedError


class DriverError(TestbedError):
    """An operation on a guest failed; the message has the expected and the actual state."""


class UnableError(DriverError):
    """A command needs something that the driver of this node cannot do."""

    failure_code = FailureCode.UNABLE


class SuspectError(DriverError):
    """A command or an image could harm this node, and no honest controller or node can have made it."""

    suspicious = True


class ImageLostError(DriverError):
    """A saved image is missing or differs from the one that was saved."""

    failure_code = FailureCode.IMAGE_LOST
