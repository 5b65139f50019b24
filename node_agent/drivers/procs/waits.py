"""The library below MPI that counts for which ranks a rank waits, for the ranks that this agent starts."""

from __future__ import annotations

import asyncio
import logging
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from node_agent.programs.waits import VARIABLE
from testbed.host.guest_image import SOURCES
from testbed.host.mpich import MpichError, mpich

_LIBRARY = "waits.so"
_COMPILER = "gcc"
_log = logging.getLogger(__name__)


def why_not() -> str:
    """Return why the library cannot be built here, an empty string if it can."""
    try:
        mpich()
    except MpichError as error:
        return str(error)
    return "" if shutil.which(_COMPILER) else f"no {_COMPILER}: expected a package gcc"


class WaitsLayer:
    """Builds the library once, when a rank needs it first; `folder` is the agent's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._building = asyncio.Lock()
        self._failed = False

    async def environment(self, guest: str) -> dict[str, str]:
        """Return a rank's variables for the library, none if it cannot be built."""
        async with self._building:
            library = self._folder / _LIBRARY
            if not self._failed and not library.exists():
                self._failed = not await _build(library)
        if self._failed:
            return {}
        counts = self._folder / f"{guest}.waits"
        counts.unlink(missing_ok=True)  # of an earlier life
        return {"LD_PRELOAD": str(library), VARIABLE: str(counts)}


async def _build(library: Path) -> bool:
    try:
        mpi = mpich()
        draft = library.with_suffix(".part")
        child = await asyncio.create_subprocess_exec(
            _COMPILER, "-O2", "-fPIC", "-shared", f"-I{mpi.header.parent}", "-o", str(draft),
            str(SOURCES / "waits.c"), str(mpi.library), f"-Wl,-rpath,{mpi.library.parent}",
            f"-Wl,-rpath-link,{mpi.library.parent / 'mpich'}", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE,
        )  # fmt: skip
        _, said = await child.communicate()
        if child.returncode != 0:
            raise OSError(said.decode(errors="replace").strip().splitlines()[-1:])
        draft.replace(library)
    except (MpichError, OSError) as error:
        _log.warning("waits of ranks are not counted: %s", error)
        return False
    return True
