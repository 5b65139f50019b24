"""All playbooks and roles, also those that cannot run here: their syntax, and ansible-lint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAYBOOKS = Path(__file__).resolve().parents[2] / "ansible"
BIN = Path(sys.executable).parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
    }
    return subprocess.run(words, cwd=PLAYBOOKS, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("playbook", ["site.yml", "rotate.yml", "certificates.yml"])
def test_the_syntax_is_right(playbook: str) -> None:
    done = run("ansible-playbook", "-i", "inventory.example.yml", "--syntax-check", playbook)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_ansible_lint_has_nothing_to_say() -> None:
    done = run("ansible-lint", "--offline", "--profile", "production", "-q", "site.yml", "rotate.yml", "roles")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", sorted(path.name for path in (PLAYBOOKS / "roles").iterdir()))
def test_a_role_says_what_it_takes(role: str) -> None:
    import yaml

    folder = PLAYBOOKS / "roles" / role
    (specs,) = yaml.safe_load((folder / "meta/argument_specs.yml").read_text()).values()
    known = set(specs["main"]["options"])
    assert specs["main"]["short_description"]
    defaults = folder / "defaults/main.yml"
    given = set(yaml.safe_load(defaults.read_text()) or {}) if defaults.exists() else set()
    private = {name for name in given - known if name.endswith(("_packages", "_url", "_repository"))}
    assert given - known - private == set(), "a default of an undocumented variable"


def test_a_list_that_libvirt_does_not_read_fails_the_play() -> None:
    import yaml

    role = PLAYBOOKS / "roles/agent"
    (block,) = [task["block"] for task in yaml.safe_load((role / "tasks/main.yml").read_text()) if "block" in task]
    (task,) = [each for each in block if "hypervisor-lists'" in str(each.get("ansible.builtin.command"))]
    assert "failed_when" not in task
    assert "when" not in task, "each time, because an earlier play may have failed after the file and before libvirtd"
    assert "groups['nodes']" in task["ansible.builtin.command"]["argv"]
    assert "virt-admin" not in (role / "handlers/main.yml").read_text()


def test_hypervisors_are_told_the_same_as_those_of_a_lab_in_a_box() -> None:
    import yaml

    from testbed.lab.secure.hypervisor import FILES, libvirtd_settings, qemu_settings

    told = yaml.safe_load((PLAYBOOKS / "roles/migration/vars/main.yml").read_text())
    assert {each["place"]: each["source"] for each in told["migration_files"]} == FILES
    assert {each["place"] for each in told["migration_folders"]} == {
        "", *(str(parent) for place in FILES for parent in Path(place).parents if str(parent) != ".")
    }  # fmt: skip
    for each in told["migration_files"]:
        assert "key" not in each["place"] or each["mode"] in {"0600", "0400"}
    by_systemd = ("listen_tls", "listen_tcp", "listen_addr")
    for transport in ("tls", "tcp"):
        here = libvirtd_settings(transport, "ADDRESS", ["n2"])
        assert {key: value for key, value in here.items() if key not in {*by_systemd, "tls_allowed_dn_list"}} == {
            key: value for key, value in told["migration_libvirtd"][transport].items() if key != "tls_allowed_dn_list"
        }
        wanted = {key: "{{ dfrs_address }}" if value == "ADDRESS" else value for key, value in
                  qemu_settings(transport, "ADDRESS").items()}  # fmt: skip
        assert wanted == told["migration_qemu"][transport]
