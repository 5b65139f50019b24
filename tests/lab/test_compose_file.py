"""The file for Docker Compose describes the same services as `testbed services`, without their secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import UserError
from testbed.lab.services.catalogue import IMAGES, NAMES, PORTS, services
from testbed.lab.services.compose import write_compose
from testbed.lab.services.keys import Keys


def test_the_file_has_images_ports_data_and_health_checks_and_no_secret(tmp_path: Path) -> None:
    keys = Keys.new()
    known = services(keys, IMAGES, PORTS)
    path = write_compose(known, tmp_path / "services")
    text = path.read_text()
    described = json.loads(text)["services"]
    assert tuple(described) == NAMES
    for name, service in known.items():
        assert described[name]["image"] == service.image
        assert described[name]["ports"] == [f"127.0.0.1:{service.port}:{service.inner_port}"]
        assert described[name]["healthcheck"]["test"] == list(service.healthy)
        assert f"{name}:{service.data}" in described[name]["volumes"]
    secrets = [getattr(keys, name) for name in keys.__struct_fields__]
    assert [secret for secret in secrets if secret in text] == []
    assert (tmp_path / "services").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "services" / "influxdb.env").stat().st_mode & 0o777 == 0o600
    assert keys.influx_token in (tmp_path / "services" / "influxdb.env").read_text()


def test_every_mounted_file_is_there_and_grafana_never_gets_the_token_that_writes(tmp_path: Path) -> None:
    keys = Keys.new()
    path = write_compose(services(keys, IMAGES, PORTS), tmp_path)
    described = json.loads(path.read_text())["services"]
    files = [mount.split(":")[0] for each in described.values() for mount in each["volumes"] if mount.startswith("./")]
    assert files
    assert [file for file in files if not (tmp_path / file).is_file()] == []
    grafana = [*(tmp_path / "grafana").rglob("*.yml"), tmp_path / "grafana.env"]
    assert [file for file in grafana if keys.influx_token in file.read_text()] == []
    assert (
        "$__file{/tokens/grafana}"
        in (tmp_path / "grafana/etc/grafana/provisioning/datasources/testbed.yml").read_text()
    )


def test_the_same_keys_give_the_same_files(tmp_path: Path) -> None:
    known = services(Keys.new(), IMAGES, PORTS)
    texts = []
    for _ in range(2):
        write_compose(known, tmp_path)
        texts.append({str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})
    assert texts[0] == texts[1]


def test_a_folder_of_others_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    tmp_path.chmod(0o755)
    with pytest.raises(UserError, match="has other files: expected a folder of this command alone"):
        write_compose(services(Keys.new(), IMAGES, PORTS), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert tmp_path.stat().st_mode & 0o777 == 0o755
