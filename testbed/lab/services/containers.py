"""Creates, inspects and removes the containers of services in a Docker engine."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.errors import RunError, UserError
from testbed.lab.services.catalogue import Service

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

NETWORK = "dfrs-testbed"
_SERVICE, _DIGEST = "dfrs.service", "dfrs.digest"
_LOOK_EVERY_S = 0.2
_HEALTHY_WITHIN_S = 120.0
_STOP_S = 10
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Status of a service: `state` of its container, or "none"; `health` is the result of its health check."""

    name: str
    state: str
    health: str
    image: str
    address: str

    @property
    def well(self) -> bool:
        """Whether the service runs and is healthy."""
        return (self.state, self.health) == ("running", "healthy")


@contextlib.contextmanager
def engine() -> Iterator[DockerClient]:
    """Connect to the engine that the environment names (DOCKER_HOST), or the system's; raises `UserError`."""
    try:
        import docker  # noqa: PLC0415  # an extra
    except ImportError:
        raise UserError("services need the extra `docker`: pip install 'dfrs-testbed[docker]'") from None
    try:
        client = docker.from_env()
        client.ping()
    except Exception as error:  # noqa: BLE001  # its own errors and those of three HTTP libraries
        raise UserError(f"no Docker engine answers: {error}; apt-get install docker.io, or set DOCKER_HOST") from None
    try:
        yield client
    except docker.errors.APIError as error:
        raise RunError(f"Docker: {error.explanation or error}") from error
    finally:
        client.close()


def up(client: DockerClient, wanted: Sequence[Service], say: Callable[[str], None]) -> list[str]:
    """Start services, and wait until each is healthy; return the names of new ones.

    A running service with the same digest stays. A service that does not become healthy is removed again; its volume
    stays.
    """
    if not client.networks.list(names=[NETWORK]):
        client.networks.create(NETWORK, labels={_SERVICE: "network"})
    made = []
    for service in wanted:
        there = _find(client, service.name)
        if there is not None and there.status == "running" and there.labels.get(_DIGEST) == service.digest:
            _until_healthy(there, service)
            continue
        if there is not None:
            say(f"{service.name}: re-creating it: it {_why(there, service)}")
            _end(there)
        _fetch(client, service.image, say)
        say(f"{service.name}: starting {service.image}")
        container = _make(client, service)
        try:
            _start(container, service)
            _until_healthy(container, service)
        except BaseException:
            container.remove(force=True)
            raise
        made.append(service.name)
    return made


def down(client: DockerClient, names: Sequence[str], *, volumes: bool, say: Callable[[str], None]) -> list[str]:
    """Remove services, and with `volumes` their data; return the names of removed items.

    The network is removed with the last service.
    """
    gone = []
    for name in names:
        container = _find(client, name)
        if container is not None:
            say(f"{name}: stopping")
            _end(container)
            gone.append(name)
        if volumes:
            for volume in client.volumes.list(filters={"label": f"{_SERVICE}={name}"}):
                volume.remove()
                gone.append(f"volume {volume.name}")
    if not client.containers.list(all=True, filters={"label": _SERVICE}):
        for network in client.networks.list(names=[NETWORK], filters={"label": _SERVICE}):
            network.remove()
    return gone


def status(client: DockerClient, known: Sequence[str]) -> list[ServiceStatus]:
    """Return the status of services."""
    return [_status(name, _find(client, name)) for name in known]


def _status(name: str, container: Container | None) -> ServiceStatus:
    if container is None:
        return ServiceStatus(name, "none", "-", "-", "-")
    state = container.attrs["State"]
    bound = [
        f"{binding['HostIp']}:{binding['HostPort']}"
        for bindings in (container.attrs["HostConfig"].get("PortBindings") or {}).values()
        for binding in bindings
    ]
    health = state.get("Health", {}).get("Status", "-")
    return ServiceStatus(name, container.status, health, container.attrs["Config"]["Image"], ", ".join(bound))


def _find(client: DockerClient, name: str) -> Container | None:
    found = client.containers.list(all=True, filters={"label": f"{_SERVICE}={name}"})
    return found[0] if found else None


def _why(container: Container, service: Service) -> str:
    if container.labels.get(_DIGEST) != service.digest:
        return "was made of another image, port or password"
    return f"is {container.status}"


def _fetch(client: DockerClient, image: str, say: Callable[[str], None]) -> None:
    from docker.errors import DockerException, ImageNotFound  # noqa: PLC0415  # an extra

    try:
        client.images.get(image)
    except ImageNotFound:
        say(f"fetching {image}")
        try:
            client.images.pull(image)
        except DockerException as error:
            why = getattr(error, "explanation", None) or error
            raise RunError(f"image {image} cannot be fetched: {why}") from None


def _make(client: DockerClient, service: Service) -> Container:
    volume = f"dfrs-testbed-{service.name}"
    client.volumes.create(volume, labels={_SERVICE: service.name})
    container: Container = client.containers.create(
        service.image, name=f"dfrs-testbed-{service.name}", hostname=service.name,
        labels={_SERVICE: service.name, _DIGEST: service.digest}, environment=dict(service.environment),
        ports={f"{service.inner_port}/tcp": ("127.0.0.1", service.port)},
        volumes={volume: {"bind": service.data, "mode": "rw"}}, restart_policy={"Name": "unless-stopped"},
        log_config={"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}},
        healthcheck={
            "test": list(service.healthy), "interval": 2 * _SECOND_NS, "timeout": 5 * _SECOND_NS, "retries": 3,
            "start_period": 60 * _SECOND_NS,
        },
        network=NETWORK, networking_config={NETWORK: _named(client, service.name)},
    )  # fmt: skip
    return container


def _named(client: DockerClient, name: str) -> dict[str, object]:
    """Make a service reachable for the others by its name."""
    found: dict[str, object] = client.api.create_endpoint_config(aliases=[name])
    return found


def _tar(service: Service) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in service.files.items():
            content = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.uid, entry.mode = len(content), service.owner, 0o600 if service.owner else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _start(container: Container, service: Service) -> None:
    from docker.errors import APIError  # noqa: PLC0415  # an extra

    container.put_archive("/", _tar(service))
    try:
        container.start()
    except APIError as error:
        why = str(error.explanation or error)
        if "already" in why:
            raise UserError(
                f"{service.name}: port {service.port} of this machine is taken: --port {service.name}=ANOTHER"
            ) from None
        raise


def _end(container: Container) -> None:
    """Stop a service in an orderly way, so that it flushes its data, and remove it."""
    container.stop(timeout=_STOP_S)
    container.remove(force=True)


def _until_healthy(container: Container, service: Service) -> None:
    ends_s = time.monotonic() + _HEALTHY_WITHIN_S
    while True:
        container.reload()
        found = _status(service.name, container)
        if found.well:
            return
        if found.state not in {"running", "created"} or time.monotonic() > ends_s:
            raise RunError(f"{service.name}: {found.state}, {found.health}, not healthy{_said(container)}")
        time.sleep(_LOOK_EVERY_S)  # polled: the engine does not reliably send an event for the first health status


def _said(container: Container) -> str:
    """Return the last line of a container's output, else of its health check's output."""
    checks = container.attrs["State"].get("Health", {}).get("Log") or [{"Output": ""}]
    printed = container.logs(tail=5).decode(errors="replace").strip() or checks[-1]["Output"].strip()
    return f": {printed.splitlines()[-1]}" if printed else ""
