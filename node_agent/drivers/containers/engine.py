"""A Docker engine: creates, caps and removes the containers of one node. Its calls block, so they run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import node_agent
from node_agent.drivers.caps.cgroup import LEAST_QUOTA_US, MOST_SHARES, PERIOD_US
from node_agent.drivers.protocol import DriverError, NodeBudget
from testbed.bus.messages import GuestSpec

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from docker.types import Mount

CALL_S = 60.0
CHECKPOINT_S = 900.0  # bounds a thread's life; the caller sets the timeout of a save or a start
_IMAGE = "dfrs-testbed/scratch:1"
_DOCKERFILE = b"FROM scratch\nLABEL dfrs.testbed=1\n"
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr", "/etc/ld.so.cache", "/etc/hosts")
_SHARED = "/dev/shm"  # noqa: S108  # the machine's own, with its inter-process communication
_OVERHEAD_MIB = 64  # of the interpreter, beside the guest's own memory
_OWNER, _GUEST = "dfrs.node", "dfrs.guest"
_CHECKPOINT = "guest"
WHOLE_FOLDER = "/dfrs"  # path of the socket inside a container that is saved whole, the same on every node
_WHOLE = "dfrs.whole"
T = TypeVar("T")


class Found(NamedTuple):
    """A container that was made for a guest. `pid` is 0 if it does not run."""

    guest: str
    pid: int
    whole: bool


class Engine:
    """The engine at `url`, or the one that the environment or the system names."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._client: DockerClient | None = None
        self._budget: NodeBudget | None = None
        self._root = Path()
        self.experimental = False  # only such an engine can checkpoint containers
        self.group_driver = ""  # the engine's cgroup driver: cgroupfs, systemd or none
        self.shared_group = ""  # of the containers of guests with shares; empty for none

    async def open(self, budget: NodeBudget) -> str:
        """Connect, and return the engine's version."""
        self._budget = budget
        return await self._call(self._connect)

    def _connect(self) -> str:
        try:
            import docker  # noqa: PLC0415  # an extra
        except ImportError:
            raise DriverError("driver docker: needs the extra `docker`: pip install 'dfrs-testbed[docker]'") from None
        self._client = docker.DockerClient(self._url) if self._url else docker.from_env()
        facts = self._client.info()
        self._root = Path(facts["DockerRootDir"])
        self.experimental = bool(facts.get("ExperimentalBuild"))
        self.group_driver = str(facts.get("CgroupDriver") or "none")
        return str(facts["ServerVersion"])

    async def make_image(self) -> None:
        """Make the empty image of all containers, if it is not there."""
        await self._call(self._make_image)

    def _make_image(self) -> None:
        if self._opened().images.list(_IMAGE):
            return
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(_DOCKERFILE)
            tar.addfile(entry, io.BytesIO(_DOCKERFILE))
        context.seek(0)
        self._opened().images.build(fileobj=context, custom_context=True, tag=_IMAGE, rm=True)

    async def found(self) -> dict[str, Found]:
        """Return the containers of agents with this node's folder, by name, also those that have ended."""

        def look() -> dict[str, Found]:
            there = {}
            for one in self._owned():
                guest, whole = str(one.labels[_GUEST]), _WHOLE in one.labels
                there[str(one.name)] = Found(guest, int(one.attrs["State"]["Pid"]), whole)
            return there

        return await self._call(look)

    async def sweep(self, kept: Collection[str] = (), *, dry_run: bool = False) -> list[str]:
        """Remove the containers of agents with this node's folder, except those `kept`; return their guests' names."""

        def clean() -> list[str]:
            guests = []
            for container in self._owned():
                if container.name not in kept:
                    guests.append(str(container.labels[_GUEST]))
                    if not dry_run:
                        _remove(container)
            return guests

        return await self._call(clean)

    def _owned(self) -> list[Container]:
        owned = {"label": f"{_OWNER}={self._owner}"}
        return list(self._opened().containers.list(all=True, filters=owned, ignore_removed=True))

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def make(
        self, name: str, spec: GuestSpec, image: Path | None, argv: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        """Make a container of that name for a command, which may read `image` wherever that is.

        It shares the machine's process ids, shared memory and network: MPI uses these to find ranks on the same
        machine.
        """
        budget = self._there()
        mounts = [(str(path), str(path)) for path in sorted({budget.state_dir, budget.image_dir, folder})]
        machines = {"network_mode": "host", "ipc_mode": "host", "pid_mode": "host"}
        await self._call(lambda: self._make(name, spec, image, argv, env, str(folder), mounts, machines))

    async def make_whole(
        self, name: str, spec: GuestSpec, argv: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        """Make a container of that name for a single command, with the same paths on every node.

        The container has only `folder` of this node's files, which holds its socket, because another node may have
        written the program's image. The folder is read-only, which does not prevent a connection to the socket.
        """
        mounts = [(str(folder), WHOLE_FOLDER)]
        alone = {"network_mode": "none"}
        await self._call(lambda: self._make(name, spec, None, argv, env, WHOLE_FOLDER, mounts, alone, whole=True))

    def _make(
        self, name: str, spec: GuestSpec, image: Path | None, argv: Sequence[str], env: Mapping[str, str], folder: str,
        own: Sequence[tuple[str, str]], spaces: Mapping[str, str], *, whole: bool = False,
    ) -> None:  # fmt: skip
        labels = {
            _OWNER: self._owner, _GUEST: spec.guest, "dfrs.run": spec.run, "dfrs.job": str(spec.job),
            "dfrs.task": str(spec.task), "dfrs.lease": spec.lease, **({_WHOLE: "1"} if whole else {}),
        }  # fmt: skip
        self._opened().containers.create(
            _IMAGE, list(argv), name=name, labels=labels, environment=dict(env),
            working_dir=folder, user=f"{os.getuid()}:{os.getgid()}", read_only=True,
            mounts=_mounts(own, image, writes=not whole), tmpfs={"/tmp": "rw,size=64m"},  # noqa: S108  # a container's own /tmp is private
            cap_drop=["ALL"], security_opt=["no-new-privileges"], **spaces, **_memory(spec.memory_mib), **_cpus(),
            cgroup_parent=None if spec.share_cores is None else self.shared_group or None, init=False,
            cpu_shares=None if spec.share_cores is None else MOST_SHARES,  # until it has its share: else it starts late
            log_config={"type": "json-file", "config": {"max-size": "1m"}},
        )  # fmt: skip

    async def start(self, container: str, lay: Callable[[Path], None] | None = None) -> int:
        """Start a container, and return the process id of its command; one that does not start is removed.

        With `lay` it is restored from the CRIU files that `lay` writes into the folder given to it.
        """

        def start() -> int:
            found = self._opened().containers.get(container)
            if lay is None:
                found.start()
            else:
                lay(self._root / "containers" / str(found.id) / "checkpoints" / _CHECKPOINT)
                self._post(f"/containers/{found.id}/start?checkpoint={_CHECKPOINT}")
            found.reload()
            return int(found.attrs["State"]["Pid"])

        try:
            return await self._call(start, CALL_S if lay is None else CHECKPOINT_S)
        except BaseException:  # also if the caller is cancelled while the container starts
            with contextlib.suppress(DriverError):
                await asyncio.shield(self._call(lambda: _remove(self._opened().containers.get(container))))
            raise

    async def checkpoint(self, container: str, folder: Path) -> Path:
        """Write a container's processes to a folder by CRIU and let them continue; return the files' folder in it."""

        def write() -> None:
            order = {"CheckpointID": _CHECKPOINT, "CheckpointDir": str(folder), "Exit": False}
            self._post(f"/containers/{container}/checkpoints", order)

        await self._call(write, CHECKPOINT_S)
        return folder / _CHECKPOINT

    def _post(self, path: str, body: object = None) -> None:
        """Send a request for which the SDK has no call."""
        api = self._opened().api
        answer = api.post(f"{api.base_url}/v{api.api_version}{path}", json=body, timeout=CHECKPOINT_S)
        if not answer.ok:
            try:
                reason = str(answer.json()["message"])
            except (ValueError, KeyError):
                reason = answer.reason
            raise DriverError(f"Docker: {reason}")

    async def ended(self, container: str) -> tuple[int, bytes]:
        """Wait for the end of a container; return its exit code and its last output.

        The engine remembers both until the container is removed, also for a later agent.
        """

        def wait() -> tuple[int, bytes]:
            found = self._opened().containers.get(container)
            code = int(found.wait(timeout=CALL_S)["StatusCode"])
            printed = bytes(found.logs(tail=50))
            found.reload()
            if found.attrs["State"]["OOMKilled"]:
                printed += b"\nits container was out of memory\n"
            return code, printed

        return await self._call(wait)

    async def remove(self, container: str) -> None:
        """Remove a container; one that is gone is no error."""

        def remove() -> None:
            from docker.errors import NotFound  # noqa: PLC0415  # an extra

            with contextlib.suppress(NotFound):
                _remove(self._opened().containers.get(container))

        await self._call(remove)

    async def set_cap(self, container: str, cap_cores: float | None) -> None:
        """Set the quota of a container, or lift it with None."""
        quota_us = -1 if cap_cores is None else max(LEAST_QUOTA_US, round(cap_cores * PERIOD_US))
        await self._update(container, cpu_period=PERIOD_US, cpu_quota=quota_us)

    async def limit_memory(self, container: str, memory_mib: int) -> None:
        """Set the memory limit of a container's command, including its share of the machine's shared memory."""
        await self._update(container, **_memory(memory_mib))

    async def _update(self, container: str, **settings: object) -> None:
        await self._call(lambda: self._opened().api.update_container(container, **settings))

    @property
    def _owner(self) -> str:
        return str(self._there().state_dir)

    def _there(self) -> NodeBudget:
        if self._budget is None:
            raise DriverError("the driver is not open")
        return self._budget

    def _opened(self) -> DockerClient:
        if self._client is None:
            raise DriverError("the driver is not open")
        return self._client

    async def _call(self, act: Callable[[], T], within_s: float = CALL_S) -> T:
        """Call the engine in a thread, within a deadline; its errors become `DriverError`."""
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.to_thread(act)
        except TimeoutError:
            raise DriverError(f"the Docker engine does not answer within {within_s:g} s") from None
        except DriverError:
            raise
        except Exception as error:  # the SDK raises its own and those of three HTTP libraries
            raise DriverError(f"Docker: {getattr(error, 'explanation', None) or error}") from error


def _remove(container: Container) -> None:
    """Remove a container; one that is gone, or being removed by another, is no error."""
    from docker.errors import APIError  # noqa: PLC0415  # an extra

    try:
        container.remove(force=True)
    except APIError as error:
        if error.status_code not in {404, 409}:
            raise


def _memory(memory_mib: int) -> dict[str, str]:
    """Return the limits of a container; the limit of memory and swap must be sent whenever the memory limit grows."""
    limit_mib = memory_mib + _OVERHEAD_MIB
    return {"mem_limit": f"{limit_mib}m", "memswap_limit": f"{2 * limit_mib}m"}


def _cpus() -> dict[str, str]:
    """Return the CPUs of a container, those of the agent: the engine starts containers, which do not inherit them."""
    own = os.sched_getaffinity(0)
    return {} if len(own) == os.cpu_count() else {"cpuset_cpus": ",".join(map(str, sorted(own)))}


def _mounts(own: Iterable[tuple[str, str]], image: Path | None, *, writes: bool) -> list[Mount]:
    """Return the mounts of a container; unlike a volume, a mount of a missing path is refused.

    `own` are folders with their paths in the container, writable if `writes`.
    """
    from docker.types import Mount  # noqa: PLC0415  # an extra

    system = [(path, str(Path(path).resolve())) for path in _read_only()]  # CRIU mounts no source that is a link
    mounts = [Mount(seen, path, type="bind", read_only=True) for seen, path in system]
    mounts += [Mount(seen, path, type="bind", read_only=not writes) for path, seen in own]
    if image is not None and image.exists() and not any(image.is_relative_to(path) for path in (*dict(own), _SHARED)):
        mounts.append(Mount(str(image), str(image), type="bind", read_only=True))
    return mounts


def _read_only() -> list[str]:
    """Return the read-only paths of a container: system, interpreter and its environment, this package."""
    root = str(Path(node_agent.__file__).resolve().parents[1])
    wanted = [*_SYSTEM, sys.prefix, sys.base_prefix, root]
    there = sorted({path for path in wanted if Path(path).exists()}, key=len)
    kept: list[str] = []
    for path in there:
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept
