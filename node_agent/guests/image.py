"""The guest image as agents use it: the current one, and the command line of its kernel."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import UserError
from testbed.host import guest_image
from testbed.host.guest_image import GuestImage, GuestImageError


def command_line(name: str, address: str | None = None, console: str = "ttyS0") -> str:
    """Return the kernel command line of a guest; `address` is the address of its first network card, as `10.77.1.5/16`.

    `no_timer_check`: the kernel counts ticks against the processor's clock for 60 ms while it boots, and panics if some
    are missing. An emulated guest misses some when its machine is busy. With KVM the kernel skips the check.
    """
    network = "" if address is None else f" dfrs.ip={address}"
    words = f"console={console} quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on"
    return f"{words} dfrs.name={name}{network}"


def current(cache: Path | None = None) -> GuestImage:
    """Return the image that was built last; raises `UserError` when there is none."""
    try:
        return guest_image.current(cache)
    except GuestImageError as error:
        raise UserError(str(error)) from error
