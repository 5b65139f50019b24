"""Saved states of booted machines, from which a node of equal shape resumes in seconds instead of a minute."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from testbed.host.process_identity import boot_id
from testbed.lab.box.xen.hardware import Accelerator, Shape
from testbed.lab.box.xen.image import XenImage

_KVM = Path("/dev/kvm")
_NO_KVM = "no-kvm"  # file in the image's folder: the boot of this machine in which the image did not boot under KVM


@dataclass(frozen=True, slots=True)
class SavedState:
    """Memory and disk of a machine when it was saved."""

    folder: Path

    @classmethod
    def of(cls, image: XenImage, shape: Shape) -> SavedState:
        """Return the saved state of this image and shape, existing or not."""
        return cls(image.folder / f"state-{shape.key()}")

    @property
    def memory(self) -> Path:
        """The machine's memory and devices, compressed; this file is written last."""
        return self.folder / "memory.zst"

    @property
    def disk(self) -> Path:
        """The machine's disk, an overlay of the image's disk; it is not written to any more."""
        return self.folder / "disk.qcow2"

    def there(self) -> bool:
        """Whether the state is complete."""
        return self.memory.exists()


def accelerators(image: XenImage) -> tuple[Accelerator, ...]:
    """Return the accelerators to try, the fastest first; /dev/kvm alone does not prove that Xen boots under KVM."""
    return ("kvm", "tcg") if _KVM.exists() and _read(image) != _this_boot() else ("tcg",)


def note_no_kvm(image: XenImage) -> None:
    """Record that the image does not boot under KVM, until this machine reboots."""
    (image.folder / _NO_KVM).write_text(_this_boot(), encoding="ascii")


def _read(image: XenImage) -> str:
    try:
        return (image.folder / _NO_KVM).read_text(encoding="ascii")
    except OSError:
        return ""


def _this_boot() -> str:
    return f"{platform.release()} {boot_id()}"
