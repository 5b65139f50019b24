"""What runs that died left on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

from testbed.doctor.finding import Finding


def labs() -> Iterator[Finding]:
    """Tell of labs in a box that are not whole."""
    from testbed.box.status import report  # noqa: PLC0415  # heavy where there is none
    from testbed.box.sweep import known_labs  # noqa: PLC0415  # as above

    if os.geteuid() != 0:
        yield Finding("labs in a box", "note", "not looked at: needs root")
        return
    names = known_labs()
    for name in names:
        missing = report(name).missing
        if missing:
            yield Finding(
                "labs in a box", "warning", f"lab {name} lacks {', '.join(missing)}", f"testbed lab down {name}"
            )
        else:
            yield Finding("labs in a box", "ok", f"lab {name} is whole")
    if not names:
        yield Finding("labs in a box", "ok", "none")
