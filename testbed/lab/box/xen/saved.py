"""Saved states of machines: a node goes on from where one like it had booted, which takes seconds, not a minute."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from testbed.host.process_identity import boot_id
from testbed.lab.box.xen.hardware import Accelerator, Shape
from testbed.lab.box.xen.image import XenImage

_KVM = Path("/dev/kvm")
_NO_KVM = "no-kvm"  # of the image: the boot of the machine on which it did not boot under KVM


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a machine knew and had on its disk when it was saved."""

    folder: Path

    @classmethod
    def of(cls, image: XenImage, shape: Shape) -> SavedState:
        """Return where the state of such a machine is, or is to be."""
        return cls(image.folder / f"state-{shape.key()}")

    @property
    def memory(self) -> Path:
        """Its memory and devices, compressed; written last."""
        return self.folder / "memory.zst"

    @property
    def disk(self) -> Path:
        """Its disk, over the image's; nothing writes to it any more."""
        return self.folder / "disk.qcow2"

    def there(self) -> bool:
        """Whether it is whole."""
        return self.memory.exists()


def accelerators(image: XenImage) -> tuple[Accelerator, ...]:
    """Return what to try, the best first: that /dev/kvm is there does not say that Xen boots under it."""
    return ("kvm", "tcg") if _KVM.exists() and _read(image) != _this_boot() else ("tcg",)


def note_no_kvm(image: XenImage) -> None:
    """Remember that the image does not boot under KVM, until this machine is started again."""
    (image.folder / _NO_KVM).write_text(_this_boot(), encoding="ascii")


def _read(image: XenImage) -> str:
    try:
        return (image.folder / _NO_KVM).read_text(encoding="ascii")
    except OSError:
        return ""


def _this_boot() -> str:
    return f"{platform.release()} {boot_id()}"
