"""Certificates of a lab in a box, by which the hypervisors of its nodes authenticate each other in live migrations."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import UserError
from testbed.lab.box.spec import BoxSpec, NodeSpec, lab_dir
from testbed.lab.box.state import write_private
from testbed.lab.secure.hypervisor import FILES

if TYPE_CHECKING:
    from testbed.lab.secure.authority import Authority

_RENEW_BEFORE_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate authority of a lab in a box, and the certificates that it has issued to nodes."""

    spec: BoxSpec

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"certificates {self.spec.lab}"

    @property
    def _folder(self) -> Path:
        return lab_dir(self.spec.lab) / "certificates"

    @property
    def _nodes(self) -> list[NodeSpec]:
        return [node for node in self.spec.nodes if node.has_libvirtd and node.transport == "tls"]

    def there(self) -> bool:
        """See `Part.there`."""
        if not (self._folder / "lab.json").exists():
            return False
        held = {each.name: each for each in _authority(self._folder, self.spec.lab).held() if each.party == "node"}
        return all(
            node.name in held
            and held[node.name].days_left > _RENEW_BEFORE_DAYS
            and held[node.name].hosts == (node.host,)
            and all(_same(node.pki_dir / place, held[node.name].folder / source) for place, source in FILES.items())
            for node in self._nodes
        )

    def make(self) -> None:
        """See `Part.make`. A running daemon reads new certificates only after a restart."""
        authority = _authority(self._folder, self.spec.lab)
        for node in self._nodes:
            held, _ = authority.issue("node", node.name, hosts=[node.host], renew_before_days=_RENEW_BEFORE_DAYS)
            for place, source in FILES.items():
                path = node.pki_dir / place
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(path, (held.folder / source).read_bytes())

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        if not self._folder.exists():
            return []
        shutil.rmtree(self._folder)
        return [self.name]


def _same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except FileNotFoundError:
        return False


def _authority(folder: Path, lab: str) -> Authority:
    try:
        from testbed.lab.secure.authority import Authority  # noqa: PLC0415  # heavy, and an extra
    except ImportError:
        raise UserError(
            f"lab {lab}: live migrations by TLS need certificates: expected the extra `secure` "
            "(pip install 'dfrs-testbed[libvirt,secure]'), or [migration] transport = \"tcp\""
        ) from None
    return Authority.create(folder, lab)
