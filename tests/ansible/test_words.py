"""Values in units, scripts and configurations are exactly the given ones, or are refused in one line."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.lab.remote.agents import _SCRIPT
from testbed.lab.remote.hosts import check_hosts
from testbed.lab.remote.unit import command_of, unit
from testbed.lab.secure.broker import mosquitto_config

ROOT = Path(__file__).resolve().parents[2]
HOST = {"name": "n1", "ssh": "root@192.0.2.11", "address": "192.0.2.11", "cpus": 8.0, "memory_mib": 32000}
LAB = {"lab": "lab-1", "broker": "mqtts://192.0.2.1:8883"}
KEYS = ("lab", "broker", "name", "address", "driver", "home", "certificate", "state_dir", "image_dir", "option")
EVIL = st.text(st.sampled_from("a1./:-@%$\"'\\ \n\r\t;&|<>=[]{}()#\0é"), min_size=1, max_size=12)


def data(key: str, value: str) -> dict[str, object]:
    if key in LAB:
        return {**LAB, key: value, "hosts": [HOST]}
    more: dict[str, object] = {"options": {"bridge": value}} if key == "option" else {key: value}
    return {**LAB, "hosts": [{**HOST, **more}]}


def words_of_systemd(text: str) -> list[str]:
    """Return the words of a line as systemd reads them; none of them may need quoting."""
    assert not re.search(r"[\"'\\$\s;]", text.replace(" ", "")), text
    return [word.replace("%%", "%") for word in text.split(" ")]


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=50)
@given(start=st.sampled_from(["", "/opt/", "mqtts://u:", "mqtts://h", "n1", "192.0.2.1"]), value=EVIL)
def test_a_unit_has_the_same_directives_whatever_the_value(key: str, start: str, value: str) -> None:
    value = start + value
    try:
        hosts, line = check_hosts(data(key, value), Path("hosts.toml")), ""
    except UserError as error:
        hosts, line = None, str(error)
    if hosts is None:
        assert re.match(r"hosts\.toml: (hosts\.0\.)?[a-z_.]+ = ", line), line
        assert "expected " in line
        assert "\n" not in line
        return
    (host,) = hosts.hosts
    try:
        text = unit(hosts.lab, hosts.broker, host)
    except UserError as error:
        line = str(error)
    if line:
        assert "which the agent's unit does not see" in line
        return
    plain = unit(**LAB, host=check_hosts({**LAB, "hosts": [HOST]}, Path("h")).hosts[0])
    names = [re.sub(r"=.*", "", line) for line in text.splitlines()]
    usual = [re.sub(r"=.*", "", line) for line in plain.splitlines()]
    if key not in {"driver", "state_dir"}:  # these change it in special ways
        assert names == usual
    (start_line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert words_of_systemd(start_line.removeprefix("ExecStart=")) == command_of(hosts.lab, hosts.broker, host)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("broker", "mqtts://h\nExecStartPost=/bin/x", "expected mqtts://[user[:password]@]host[:port]"),
        ("broker", "mqtts://u:se cret$@h", "broker = 'mqtts://…@h': expected mqtts://"),
        ("broker", "$BROKER", "broker = '$BROKER': expected mqtts://"),
        ("address", "192.0.2.11 --cpus 99", "hosts.0.address = '192.0.2.11 --cpus 99': expected a name or an address"),
        ("address", "n1\n", "hosts.0.address = 'n1\\n': expected"),
        ("lab", "lab-1\n", "lab = 'lab-1\\n': expected 1 to 63 of a-z, 0-9 and -"),
        ("option", "a b", "hosts.0.options.bridge = 'a b': expected a word of"),
        ("home", "/opt/../root", "hosts.0.home = '/opt/../root': expected an absolute path"),
    ],
)
def test_a_value_that_is_refused_is_named(key: str, value: str, expected: str) -> None:
    with pytest.raises(UserError) as error:
        check_hosts(data(key, value), Path("hosts.toml"))
    assert expected in str(error.value)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    "broker",
    ["mqtts://h", "mqtts://h.example:8883/", "mqtt://127.0.0.1:1883", "insecure+mqtt://u:p%40%24@10.0.0.1",
     "mqtts://[2001:db8::1]:8883"],
)  # fmt: skip
def test_addresses_of_brokers_that_are_good(broker: str) -> None:
    hosts = check_hosts(data("broker", broker), Path("h"))
    assert broker.replace("%", "%%") in unit(hosts.lab, hosts.broker, hosts.hosts[0])


@given(st.lists(st.text(st.sampled_from("ab1?&%=+[]~'\" $;|>"), min_size=1, max_size=6), min_size=1, max_size=3))
def test_the_script_starts_its_command_word_by_word(words: list[str]) -> None:
    """Without systemd, an option such as a?b&c was once read as a pattern and a second command."""
    text = _SCRIPT.format(home="/h", command=shlex.join(words), within=1, serving="x")
    (line,) = re.findall(r"setsid (sh -c '.*?) < /dev/null &\n", text, re.DOTALL)
    first, _, _ = line.partition("sh -c '")
    inner, _, rest = line.removeprefix(f"{first}sh -c '").partition("' sh ")
    assert "'" not in inner
    assert 'exec "$@"' in inner
    assert shlex.split(rest) == words


def test_the_script_is_a_script_of_sh() -> None:
    text = _SCRIPT.format(home="/h", command=shlex.join(["a?b&c", "it's"]), within=1, serving="x")
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("key", ["bind", "user", "certificates", "state-dir", "rules"])
@settings(max_examples=50)
@given(value=EVIL)
def test_a_configuration_of_mosquitto_has_the_same_lines_whatever_the_value(key: str, value: str) -> None:
    given_ = {"bind": "192.0.2.1", "user": "mosquitto", "certificates": "/c", "state-dir": "/s", "rules": "/r"}

    def config(of: dict[str, str]) -> str:
        paths = (Path(of["certificates"]), Path(of["state-dir"]), Path(of["rules"]))
        return mosquitto_config(of["bind"], *paths, user=of["user"])

    changed = {**given_, key: f"/{value}" if given_[key].startswith("/") else value}
    text = line = ""
    try:
        text = config(changed)
    except UserError as error:
        line = str(error)
    if line:
        assert re.match(rf"mosquitto\.conf: {key} = .*: expected ", line)
        assert "\n" not in line
        return
    assert [line.partition(" ")[0] for line in text.split("\n")] == [
        line.partition(" ")[0] for line in config(given_).split("\n")
    ]
    assert text.isprintable() or set(text) - set(filter(str.isprintable, text)) == {"\n"}


@pytest.mark.parametrize(
    ("role", "names"),
    [("common", {"dfrs_lab", "dfrs_address"}), ("bridge", {"bridge_name", "bridge_address"}), ("time", {"item"}),
     ("grafana", {"item.value", "grafana_influx_token", "grafana_admin_password"}),
     ("influxdb", {"influxdb_bind", "influxdb_org", "influxdb_bucket", "influxdb_token"})],
)  # fmt: skip
def test_roles_check_the_words_that_they_write_before_anything_else(role: str, names: set[str]) -> None:
    r"""As a whole: by $ in place of \Z a value may end in a line break."""
    tasks = yaml.safe_load((ROOT / "ansible/roles" / role / "tasks/main.yml").read_text())
    first = next(at for at, task in enumerate(tasks) if "ansible.builtin.assert" not in task)
    asked = [task["ansible.builtin.assert"]["that"] for task in tasks[:first]]
    found = " ".join(each if isinstance(each, str) else " ".join(each) for each in asked)
    for name in names:
        (pattern,) = re.findall(rf'(?<![a-z_.]){re.escape(name)} is match\((.*?)\\\\Z"\)', found)
        if pattern.startswith('"'):
            for bad in ("a b", "a\n", 'a"', "a'", "a\\", "a$b", "a%b", "a;b", "a#b"):
                assert not re.fullmatch(pattern[1:], bad), (name, bad)


def test_the_file_of_machines_by_ansible_quotes_what_it_is_given() -> None:
    template = (ROOT / "ansible/templates/hosts.toml.j2").read_text()
    assert not re.search(r'"\{\{ (?!", ")', template)
    for line in template.splitlines():
        if re.match(r"[a-z_]+ = \{\{", line):
            assert re.search(r"\| (to_json|int|float) \}\}$", line), line
