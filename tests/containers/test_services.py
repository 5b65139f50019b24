"""`testbed services` with a real engine and a real Mosquitto, in an image that the tests build without a registry."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.containers.engine import EngineAt, engine, why_not
from support.live import HANG_S

from testbed.bus.mosquitto import find_mosquitto

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

IMAGE = "dfrs-test/mosquitto:1"
DOCKERFILE = b"""FROM scratch
ADD root.tar /
ENV PATH=/bin
CMD ["/usr/sbin/mosquitto", "-c", "/mosquitto/config/mosquitto.conf"]
"""
TALKS = """
import asyncio, sys
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus

async def main():
    heard = asyncio.Event()
    async def hear(topic, payload):
        heard.set()
    broker = BrokerAddress.parse("$TESTBED_BROKER")
    async with asyncio.timeout(900), MqttBus(broker, "talker", keep_session=False) as bus:
        await bus.subscribe("testbed/v1/t/lease", hear)
        if sys.argv[1] == "publish":
            await bus.publish("testbed/v1/t/lease", b"kept", retain=True)
        await heard.wait()

asyncio.run(main())
"""


@dataclass
class Services:
    """Runs commands on the engine's network."""

    at: EngineAt
    environment: dict[str, str]

    def run(self, *words: str, code: int = 0) -> str:
        done = self.command(sys.executable, "-m", "testbed", "services", *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.at.inside, *words], env=self.environment, capture_output=True, text=True, check=False, timeout=HANG_S
        )

    def env(self) -> dict[str, str]:
        lines = self.run("env").splitlines()
        return {**self.environment, **dict(line.removeprefix("export ").split("=", 1) for line in lines)}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with engine(own_network=True) as found:
        _build(found.url)
        config = tmp_path_factory.mktemp("config")
        environment = {**os.environ, "DOCKER_HOST": found.url, "XDG_CONFIG_HOME": str(config)}
        yield Services(found, environment)


def _build(url: str) -> None:
    """Build an image from scratch: this machine's Mosquitto with its libraries, and busybox."""
    import docker

    program, busybox = find_mosquitto(), shutil.which("busybox")
    assert program is not None
    assert busybox is not None
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in linked.split() if word.startswith("/")]
    root = _tar(
        *((path.lstrip("/"), Path(path).resolve()) for path in libraries),
        ("usr/sbin/mosquitto", Path(program)),
        *((f"bin/{name}", Path(busybox)) for name in ("nc", "sh")),
        ("etc/passwd", b"root:x:0:0::/:\nmosquitto:x:1883:1883::/:\n"),
        ("etc/group", b"mosquitto:x:1883:\n"),
        ("mosquitto/data", None),
        ("mosquitto/config", None),
    )
    context = _tar(("Dockerfile", DOCKERFILE), ("root.tar", root))
    with contextlib.closing(docker.DockerClient(url)) as client:
        client.images.build(fileobj=io.BytesIO(context), custom_context=True, tag=IMAGE, rm=True)


def _tar(*entries: tuple[str, Path | bytes | None]) -> bytes:
    """Return an archive of files, of texts and, for None, of folders that are Mosquitto's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries:
            if isinstance(content, Path):
                tar.add(content, name)
                continue
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o700, 1883, 1883
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content or b""))
    return buffer.getvalue()


def test_a_broker_comes_up_lets_in_by_password_and_keeps_what_it_was_told(services: Services) -> None:
    up = ("up", "broker", f"--image=broker={IMAGE}", "--json")
    told = json.loads(services.run(*up))
    assert told["made"] == ["broker"]
    (broker,) = told["services"]
    assert (broker["state"], broker["health"], broker["address"]) == ("running", "healthy", "127.0.0.1:1883")
    assert json.loads(services.run(*up))["made"] == [], "existing services stay"
    environment = services.env()
    assert environment["TESTBED_BROKER"].startswith("mqtt://testbed:")
    services.environment, before = environment, services.environment
    try:
        assert services.command(sys.executable, "-c", TALKS, "publish").returncode == 0
        services.environment = {**environment, "TESTBED_BROKER": "mqtt://127.0.0.1:1883"}
        refused = services.command(sys.executable, "-c", TALKS, "publish")
        assert refused.returncode != 0
        assert "not authori" in refused.stderr.lower(), refused.stderr
    finally:
        services.environment = before
    moved = json.loads(services.run("up", "broker", f"--image=broker={IMAGE}", "--port=broker=1884", "--json"))
    assert moved["made"] == ["broker"]
    services.environment = services.env()
    try:
        assert services.command(sys.executable, "-c", TALKS, "listen").returncode == 0, "the message was retained"
    finally:
        services.environment = before
    assert json.loads(services.run("down", "--json"))["removed"] == ["broker"]
    assert "nothing, as none was up" in services.run("down")
    assert json.loads(services.run("down", "--volumes", "--json"))["removed"] == ["volume dfrs-testbed-broker"]
    services.run("status", code=1)


def composing() -> list[str]:
    """Return the words that begin a command of Docker Compose; none if it is not installed."""
    words = ["docker", "compose", "version"]
    if shutil.which("docker") and subprocess.run(words, capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return [found] if (found := shutil.which("docker-compose")) else []


@pytest.mark.skipif(
    not composing(), reason="no Docker Compose is installed (docker-compose: scripts/debian-packages test)"
)
def test_compose_starts_the_broker_of_the_same_description(services: Services, tmp_path: Path) -> None:
    folder = tmp_path / "services"
    services.run("compose", str(folder), "broker", f"--image=broker={IMAGE}", "--port=broker=1885")
    compose = [*composing(), "-f", str(folder / "compose.yaml")]
    before = services.environment
    try:
        done = services.command(*compose, "up", "-d")
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = (folder / "testbed.env").read_text().splitlines()
        address = line.removeprefix("export TESTBED_BROKER=")
        assert "@127.0.0.1:1885" in address
        services.environment = {**before, "TESTBED_BROKER": address.strip("'")}
        assert services.command(sys.executable, "-c", TALKS, "publish").returncode == 0
    finally:
        services.environment = before
        assert services.command(*compose, "down", "--volumes").returncode == 0


def test_a_port_that_is_taken_is_told_and_nothing_is_left(services: Services) -> None:
    holder = subprocess.Popen(
        [*services.at.inside, sys.executable, "-c",
         "import socket; s = socket.create_server(('127.0.0.1', 1883)); print('there', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"there\n"
        err = services.run("up", "broker", f"--image=broker={IMAGE}", code=2)
        assert "port 1883 of this machine is taken: --port broker=ANOTHER" in err
    finally:
        holder.communicate(b"\n")
    services.run("down", "--volumes")
    found = json.loads(services.command(sys.executable, "-m", "testbed", "services", "status", "--json").stdout)
    assert {each["state"] for each in found["services"]} == {"none"}


def test_an_image_that_cannot_be_fetched_is_named(services: Services) -> None:
    err = services.run("up", "influxdb", "--image=influxdb=127.0.0.1:9/none:1", code=1)
    assert "image 127.0.0.1:9/none:1 cannot be fetched" in err


def test_grafana_needs_the_database_that_gives_it_a_token(services: Services) -> None:
    assert "grafana: it reads InfluxDB, which is not up" in services.run("up", "grafana", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "brocker"), "nearest: broker"),
        (("up", "--port=broker=0"), "expected a port from 1 to 65535"),
        (("up", "--port=1884"), "expected NAME=…"),
        (("up", "--image=broker"), "expected NAME=…"),
    ],
)
def test_wrong_words_are_told(services: Services, words: tuple[str, ...], said: str) -> None:
    assert said in services.run(*words, code=2)
