"""The agent's unit of systemd and its installation: one of each for `testbed node add` and Ansible."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from testbed.bus.drivers import traits_of
from testbed.cli.node import node
from testbed.errors import UserError
from testbed.lab.remote.agents import install
from testbed.lab.remote.hosts import Host, Hosts, check_hosts, read_hosts
from testbed.lab.remote.unit import command_of, unit

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "ansible"
REMOTE = ROOT / "testbed/lab/remote"
BROKER = "mqtts://192.0.2.1:8883"
WORDS = {"cpus": 8.0, "memory_mib": 32000, "address": "192.0.2.11", "ssh": "root@192.0.2.11"}


def host(driver: str = "libvirt", **more: object) -> Host:
    return check_hosts(
        {"lab": "lab-1", "broker": BROKER, "hosts": [{"name": "n1", "driver": driver, **WORDS, **more}]}, Path("h")
    ).hosts[0]


def settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("driver", ["libvirt", "xen", "docker", "process", "of-a-plug-in"])
def test_the_unit_is_hardened_whatever_the_driver(driver: str, tmp_path: Path) -> None:
    text = unit("lab-1", BROKER, host(driver))
    found = settings(text)
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces", "ProtectKernelModules"):
        assert found[name] == "true"
    assert found["ProtectSystem"] == "strict"
    assert "CAP_SYS_ADMIN" not in found["CapabilityBoundingSet"]
    assert found["KillMode"] == "process", "the keeper of guests outlives an agent that is killed"
    assert found["OOMPolicy"] == "continue", "the end of one guest must not end the others"
    assert "--tls-dir /opt/dfrs-testbed/certificate" in found["ExecStart"]
    assert "/opt/dfrs-testbed/images" in found["ReadWritePaths"]
    assert "/opt/dfrs-testbed/venv" not in found["ReadWritePaths"]
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    path = tmp_path / "dfrs-agent.service"
    path.write_text(text.replace("/opt/dfrs-testbed/venv/bin/node-agent", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", path], capture_output=True, text=True, check=False)
    assert "dfrs-agent.service:" not in done.stderr, done.stderr
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=50", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.parametrize(("driver", "bound"), [("libvirt", "32512M"), ("docker", "32512M"), ("process", None)])
def test_memory_is_bounded_where_guests_are_no_part_of_the_unit(driver: str, bound: str | None) -> None:
    assert settings(unit("lab-1", BROKER, host(driver))).get("MemoryMax") == bound
    assert "MemoryMax" not in settings(unit("lab-1", BROKER, host(driver, agent_memory_mib=0)))


def test_a_percent_sign_and_an_option_are_words_of_the_command() -> None:
    chosen = host("libvirt", options={"bridge": "dfrs0", "rate": "5%"}, image_budget_mib=40_000)
    assert "--option bridge=dfrs0 --option rate=5%% --state-dir" in unit("lab-1", BROKER, chosen)
    assert command_of("lab-1", BROKER, chosen)[-4:] == ["--image-budget-mib", "40000", "--agent-memory-mib", "512"]


@pytest.mark.parametrize("home", ["/home/me/agent", "/root", "/run/user/0/agent"])
def test_a_folder_that_the_unit_does_not_see_is_refused_before_anything_is_installed(home: str, tmp_path: Path) -> None:
    wheel = tmp_path / "dfrs_testbed-0.1.0-py3-none-any.whl"
    wheel.touch()
    hosts = Hosts(lab="lab-1", broker="mqtt://127.0.0.1", hosts=(host(home=home),))
    with pytest.raises(UserError, match=rf"node n1: {home}: expected a folder outside /home, /root, /run/user"):
        install(hosts, hosts.hosts, str(wheel), None, lambda _host, _line: None)


@pytest.mark.parametrize("package", ["dfrs-testbed", "dfrs-testbed==0.1.0", "git+https://192.0.2.9/x", "../x.tar.gz"])
def test_what_is_no_wheel_of_ours_is_not_installed_as_root(package: str) -> None:
    hosts = Hosts(lab="lab-1", broker="mqtt://127.0.0.1", hosts=(host(),))
    with pytest.raises(UserError, match=r"^--package .*: expected a wheel that you have built"):
        install(hosts, hosts.hosts, package, None, lambda _host, _line: None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"lab": "lab-2"}', "lab = 'lab-2': expected 'lab-1', the lab of the hosts file"),
        ("[]", "expected the lab's name"),
    ],
)
def test_the_certificates_of_another_lab_are_not_installed(content: str, why: str, tmp_path: Path) -> None:
    wheel = tmp_path / "dfrs_testbed-0.1.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "lab.json").write_text(content)
    hosts = Hosts(lab="lab-1", broker=BROKER, hosts=(host(),))
    with pytest.raises(UserError, match=re.escape(why)):
        install(hosts, hosts.hosts, str(wheel), tmp_path, lambda _host, _line: None)
    (tmp_path / "lab.json").write_text('{"lab": "lab-1"}')
    install(hosts, hosts.hosts, str(wheel), tmp_path, lambda _host, _line: None)


def test_the_playbook_asks_each_time_whose_authority_it_uses() -> None:
    """By `testbed ca init`, which refuses a folder of another lab."""
    (play,) = yaml.safe_load((PLAYBOOKS / "certificates.yml").read_text())
    first = play["tasks"][0]["ansible.builtin.command"]
    assert first["argv"][:3] == ["testbed", "ca", "init"]
    assert "creates" not in first


def rendered(**variables: object) -> str:
    """Return the hosts file that the role gives to `testbed node unit`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    about = {
        "dfrs_address": "192.0.2.11", "dfrs_cpus": 8, "dfrs_memory_mib": 32000, "dfrs_driver": "libvirt",
        "ansible_host": "192.0.2.11", **variables,
    }  # fmt: skip
    environment = Environment(  # noqa: S701  # not a web page
        loader=FileSystemLoader(PLAYBOOKS / "templates"), undefined=StrictUndefined, keep_trailing_newline=True,
        trim_blocks=True,
    )  # fmt: skip
    environment.filters["to_json"] = json.dumps
    return environment.get_template("hosts.toml.j2").render(
        ansible_managed="by a test", dfrs_lab="lab-1", groups={"head": ["broker-1"], "nodes": ["n1"]},
        hostvars={"n1": about, "broker-1": {"dfrs_address": "192.0.2.1", "ansible_host": "broker-1.example"}},
    )  # fmt: skip


def test_ansible_writes_the_same_unit_in_its_own_folders() -> None:
    text = rendered(agent_options={"bridge": "dfrs0", "number": 7})
    said = CliRunner().invoke(node, ["unit", "n1", "--hosts", "-"], input=text, standalone_mode=False)
    ours = host(
        options={"bridge": "dfrs0", "number": "7"}, certificate="/etc/dfrs-testbed/certificate",
        state_dir="/run/dfrs-agent", image_dir="/var/lib/dfrs-agent/images",
    )  # fmt: skip
    assert said.output == unit("lab-1", BROKER, ours)
    found = settings(said.output)
    assert (found["RuntimeDirectory"], found["RuntimeDirectoryPreserve"]) == ("dfrs-agent", "restart")
    assert read_hosts(text, Path("-")).head is not None
    assert read_hosts(rendered(), Path("-")).hosts[0].options == {}


@pytest.mark.parametrize(("driver", "extra"), [("libvirt", "libvirt"), ("xen", "libvirt"), ("process", "")])
def test_ansible_asks_for_the_extra_that_a_driver_needs(driver: str, extra: str) -> None:
    words = ["extra", "n1", "--hosts", "-"]
    said = CliRunner().invoke(node, words, input=rendered(dfrs_driver=driver), standalone_mode=False)
    assert (said.exit_code, said.output) == (0, f"{extra}\n")
    tasks = (PLAYBOOKS / "roles/agent/tasks/main.yml").read_text()
    assert "argv: [testbed, node, extra," in tasks
    assert "dfrs_driver" not in tasks


def test_the_role_has_no_unit_and_no_package_of_its_own() -> None:
    role = PLAYBOOKS / "roles/agent"
    assert not (role / "templates").exists()
    tasks = (role / "tasks/main.yml").read_text()
    assert "[testbed, node, unit," in tasks
    assert "/install-agent" in tasks
    assert "ansible.builtin.pip" not in tasks
    (specs,) = yaml.safe_load((role / "meta/argument_specs.yml").read_text()).values()
    assert specs["main"]["options"]["agent_package"] == {
        "type": "path", "required": True,
        "description": "The wheel to install, built by you on the machine that runs Ansible.",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["ansible", "scripts", "testbed/lab/remote"])
def test_whatever_pip_installs_has_hashes_or_is_a_wheel_of_ours(path: str) -> None:
    """scripts/test installs into its caller's environment, so it locks versions only, not hashes."""
    files = [file for file in (ROOT / path).rglob("*") if file.is_file() and file.suffix not in {".pyc", ".txt"}]
    found = [
        line.strip()
        for file in files
        if file != ROOT / "scripts/test"
        for line in file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        if re.search(r"\bpip\b.* install\b (?!')|ansible\.builtin\.pip", line) and not line.lstrip().startswith("#")
    ]
    assert all("--require-hashes" in line or "--no-index" in line for line in found), found


@pytest.mark.parametrize("name", ["agent.txt", "agent-docker.txt", "agent-libvirt.txt"])
def test_locks_have_one_version_and_hashes_of_each_requirement(name: str) -> None:
    text = (REMOTE / "locks" / name).read_text()
    entries = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        requirement, *hashes = entry.split("--hash=")
        assert re.match(r"[a-z0-9-]+==[0-9a-z.]+ ", requirement), entry[:80]
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes)
    assert not re.search(r"://|file:|/", text.split("\n", 1)[1]), "no index and no path is named"


def test_locks_are_of_the_versions_that_are_tested() -> None:
    tested = dict(re.findall(r"^([a-z0-9-]+)==([^ \n]+)", (ROOT / "tests/constraints.txt").read_text(), re.MULTILINE))
    for name in ("agent.txt", "agent-docker.txt"):
        for package, version in re.findall(
            r"^([a-z0-9-]+)==([^ \n]+)", (REMOTE / "locks" / name).read_text(), re.MULTILINE
        ):
            if package not in {"setuptools", "numpy"}:
                assert tested[package] == version, package


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose environment has a fake pip that records its arguments."""
    folder = tmp_path / "home"
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "locks").mkdir()
    for lock in (REMOTE / "locks").glob("*.txt"):
        (folder / "locks" / lock.name).write_bytes(lock.read_bytes())
    python = folder / "venv/bin/python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n')
    python.chmod(0o755)
    (folder / "own.whl").write_text("one")
    return folder


def run_install(home: Path, extra: str, *more: str) -> list[str]:
    """Install, and return the calls of pip."""
    (home / "calls").unlink(missing_ok=True)
    subprocess.run(["sh", REMOTE / "install-agent", home, extra, home / "own.whl", *more], check=True)
    return (home / "calls").read_text().splitlines() if (home / "calls").exists() else []


@pytest.mark.parametrize(
    ("driver", "lists"), [("process", ["agent.txt"]), ("docker", ["agent.txt", "agent-docker.txt"]),
                          ("xen", ["agent.txt", "agent-libvirt.txt"]), ("of-a-plug-in", ["agent.txt"])],
)  # fmt: skip
def test_requirements_are_installed_by_hashes_and_the_wheel_without_any(
    home: Path, driver: str, lists: list[str]
) -> None:
    extra = traits_of(driver).extra
    calls = run_install(home, extra, "--find-links=/srv/wheels")
    *requirements, wheel = calls
    assert all("--require-hashes" in call and "--find-links=/srv/wheels" in call for call in requirements)
    assert re.findall(r"--requirement (\S+)", " ".join(requirements)) == lists
    assert wheel.endswith(f"install --no-deps --no-index --force-reinstall {home}/own.whl")
    assert run_install(home, extra, "--find-links=/srv/wheels") == [], "a repeat changes nothing"


def test_another_wheel_or_another_lock_is_installed_and_a_failure_is_tried_again(home: Path) -> None:
    run_install(home, "")
    (home / "own.whl").write_text("another of the same version")
    (call,) = run_install(home, "")
    assert call.endswith("own.whl")
    (home / "locks/agent.txt").write_text("another\n")
    (call,) = run_install(home, "")
    assert "--require-hashes" in call
    (home / "locks/agent.txt").write_text("a third\n")
    python = home / "venv/bin/python"
    good = python.read_text()
    python.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_install(home, "")
    python.write_text(good)
    (call,) = run_install(home, "")
    assert "--require-hashes" in call


@pytest.mark.slow
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """Real pip refuses a wheel that was replaced in its folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    import zipfile

    with zipfile.ZipFile(wheels / "tomli_w-1.2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tomli_w/__init__.py", "raise SystemExit('not what was tested')\n")
        wheel.writestr("tomli_w-1.2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tomli-w\nVersion: 1.2.0\n")
        wheel.writestr(
            "tomli_w-1.2.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tomli_w-1.2.0.dist-info/RECORD", "")
    home = tmp_path / "home"
    (home / "locks").mkdir(parents=True)
    text = (REMOTE / "locks/agent.txt").read_text()
    (entry,) = re.findall(r"^tomli-w==1\.2\.0 \\\n(?:    --hash=.*\n)+", text, re.MULTILINE)
    (home / "locks/agent.txt").write_text(entry)
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    done = subprocess.run(
        ["sh", REMOTE / "install-agent", home, "", wheels / "own.whl", "--no-index", f"--find-links={wheels}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not list((home / "venv").rglob("tomli_w"))
