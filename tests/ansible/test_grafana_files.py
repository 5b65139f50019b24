"""Grafana's files are the output of the generator, and use only quantities that are measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml

from testbed.measure.flux import QUERIES, Query, Scope
from testbed.measure.grafana import _STATES, DATA_SOURCE, UNITS, dashboards
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "testbed/lab/services/grafana"
MADE = {name: json.loads(text) for name, text in dashboards().items()}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['title']}")
    for name, dashboard in MADE.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
TARGETS = [target["query"] for panel in PANELS for target in panel.values[0]["targets"]]
VARIABLES = {f"{name}-{one['name']}": one["query"] for name, made in MADE.items() for one in made["templating"]["list"]}
OWN_COLUMNS = {"_measurement", "_field", "_value", "_time"}


def test_the_files_are_as_the_generator_makes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/grafana-dashboards", tmp_path], check=True)
    kept = {path.name: path.read_bytes() for path in (FILES / "dashboards").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "run scripts/grafana-dashboards"
    assert sorted(kept) == ["lab.json", "run.json"]


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_every_query_names_what_is_measured(query: Query) -> None:
    text = query.grafana()
    (name,) = re.findall(r'r\._measurement == "([^"]+)"', text)
    measurement = MEASUREMENTS[name]
    fields = {field.name for field in measurement.fields}
    chosen = re.findall(r'r\._field == "([^"]+)"', text)
    assert chosen
    assert set(chosen) <= fields
    columns = {*OWN_COLUMNS, *RUN_TAGS, *measurement.tags}
    if "pivot(" in text:
        columns |= set(chosen)
    assert set(re.findall(r"\br\.(\w+)", text)) <= columns
    listed = re.findall(r"columns: \[([^\]]*)\]", text)
    assert listed
    assert {word for words in listed for word in re.findall(r'"([^"]+)"', words)} <= columns


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_units_are_those_of_the_schema(query: Query) -> None:
    units = {field.unit for field in MEASUREMENTS[query.measurement].fields if field.name in query.fields}
    if any("derivative" in step for step in query.steps):
        assert query.unit == {"s": "cores", "MiB": "MiB/s"}[units.pop()]
    elif not any("map(" in step for step in query.steps):
        assert {query.unit} == units
    assert query.unit in UNITS
    assert all(field in query.meaning() for field in query.fields)


def test_every_query_is_on_a_dashboard() -> None:
    shown = set(TARGETS)
    for query in QUERIES.values():
        assert {query.grafana(), query.grafana(all_runs=True)} & shown, query.name
    assert sum("${run}" in text for text in TARGETS) == sum(
        len(p["targets"]) for p in MADE["run.json"]["panels"][1:] if p["type"] != "row"
    )


@pytest.mark.parametrize("panel", PANELS)
def test_panels_are_whole(panel: dict[str, object]) -> None:
    targets = panel["targets"]
    assert [target["refId"] for target in targets] == ["A", "B"][: len(targets)]
    assert panel["datasource"] == DATA_SOURCE
    overrides = panel["fieldConfig"]["overrides"]
    names = {
        one["matcher"]["options"]: one["properties"][0]["value"]
        for one in overrides
        if one["matcher"]["id"] == "byFrameRefID"
    }
    assert len(set(names.values())) == len(targets)
    for target in targets:
        (groups,) = re.findall(r"group\(columns: \[([^\]]*)\]", target["query"])
        labels = set(re.findall(r"__field\.labels\.(\w+)", names[target["refId"]]))
        assert labels == {word for word in re.findall(r'"([^"]+)"', groups) if not word.startswith("_")}, (
            "series that look alike"
        )
        several = target["query"].count("r._field ==") > 1 and "map(" not in target["query"]
        assert ("__field.name" in names[target["refId"]]) >= several
    for override in overrides:
        if override["matcher"]["id"] == "byRegexp":
            assert re.search(override["matcher"]["options"].strip("/"), " ".join(target["query"] for target in targets))


@pytest.mark.parametrize("name", MADE)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in MADE[name]["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in MADE[name]["panels"]}) == len(MADE[name]["panels"])


def test_states_are_those_of_a_job() -> None:
    meaning = MEASUREMENTS["job"].field("state").meaning
    assert set(_STATES) == set(re.findall(r"\w+", meaning)) - {"or"}
    assert len(set(_STATES.values())) == len(_STATES)


def test_provisioning_fits_the_dashboards() -> None:
    (source,) = yaml.safe_load((FILES / "datasources/testbed.yml").read_text())["datasources"]
    assert {"type": source["type"], "uid": source["uid"]} == DATA_SOURCE
    assert source["jsonData"]["version"] == "Flux"
    assert re.fullmatch(r"\$__env\{\w+\}", source["secureJsonData"]["token"]), "no token in a file"
    (provider,) = yaml.safe_load((FILES / "dashboards.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()


def test_names_in_pasted_queries_are_quoted() -> None:
    text = QUERIES["cap"].text(Scope(bucket='a"b\\', lab="${x}"))
    assert r'from(bucket: "a\"b\\")' in text
    assert r'r.lab == "\${x}"' in text


def test_grafana_s_own_model_keeps_every_key() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install grafana-foundation-sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    for made in MADE.values():
        kept = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
        assert missing(made, kept) == []
    broken = json.loads(json.dumps(MADE["run.json"]))
    broken["panels"][1]["options"]["legend"]["placment"] = "bottom"
    assert missing(broken, json.loads(JSONEncoder().encode(Dashboard.from_json(broken)))) != []


def missing(before: object, after: object, where: str = "") -> list[str]:
    """Return the parts of a document that a model does not know, or changes."""
    if isinstance(before, dict) and isinstance(after, dict):
        lost = [f"{where}/{key}" for key in before if key not in after]
        return lost + [
            line for key in before if key in after for line in missing(before[key], after[key], f"{where}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line for at, (a, b) in enumerate(zip(before, after, strict=True)) for line in missing(a, b, f"{where}/{at}")
        ]
    return [] if before == after else [where]


CHECK = """
const {is_valid_flux} = require("@influxdata/flux-lsp-node");
let text = "";
process.stdin.on("data", part => text += part).on("end", () => {
  const wrong = Object.entries(JSON.parse(text)).filter(([, query]) => !is_valid_flux(query));
  console.log(JSON.stringify(wrong.map(([name]) => name)));
});
"""


def test_influxdb_s_own_parser_takes_every_query() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    search = {**os.environ, "NODE_PATH": os.environ.get("NODE_PATH", str(ROOT / "node_modules"))}
    found = subprocess.run(
        [node, "-e", 'require.resolve("@influxdata/flux-lsp-node")'], check=False, env=search, capture_output=True
    )
    if found.returncode:
        pytest.skip("the Flux parser is not installed: npm install --no-save @influxdata/flux-lsp-node, or NODE_PATH")
    queries = {f"target {number}": text for number, text in enumerate(TARGETS)} | VARIABLES
    queries |= {name: query.text(Scope()) for name, query in QUERIES.items()}
    begin = 'option v = {defaultBucket: "b", timeRangeStart: -1h, timeRangeStop: now(), windowPeriod: 10s}\n'
    whole = {name: with_variables(text, begin) for name, text in queries.items()}
    scope = Scope(
        "b", "2026-11-21T10:28:49Z", "2026-11-21T10:30:51Z", "1s", "local", "2026-11-21T10-29-37-${quick}\\start"
    )
    whole |= {f"{name} of a run": query.text(scope) for name, query in QUERIES.items()}
    bad = {
        "bad syntax": "from(bucket:",
        "bad name": 'from(bucket: "b") |> rnge(start: -1h)',
        "bad type": 'from(bucket: "b") |> range(start: -1h) |> aggregateWindow(every: 1, fn: mean)',
    }
    done = subprocess.run(
        [node, "-e", CHECK], input=json.dumps({**whole, **bad}), env=search, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == list(bad)
    assert len(whole) > 80


def with_variables(text: str, begin: str) -> str:
    """Return a query as Grafana sends it; `v` replaces the variables that Grafana and InfluxDB's page fill in."""
    text = text.replace("${lab}", "local").replace("${run}", "a-run")
    imports, found, rest = text.rpartition("\n\n")
    return f"{imports}{found}{begin}{rest}"


def test_tags_of_labels_exist() -> None:
    labels = set(re.findall(r"__field\.labels\.(\w+)", json.dumps(MADE)))
    assert labels
    assert labels <= set(TAGS)


@pytest.mark.parametrize("password", ["", "long-enough-password"])
def test_grafana_has_no_account_with_a_password_that_everybody_knows(password: str) -> None:
    """The default account of Grafana is admin with the password admin, on all addresses."""
    role = ROOT / "ansible/roles/grafana"
    values = {**yaml.safe_load((role / "defaults/main.yml").read_text()), "grafana_admin_password": password}
    text = jinja2.Template((role / "templates/testbed.env.j2").read_text()).render(values)
    found = dict(line.split("=", 1) for line in text.splitlines() if line)
    assert found["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    if password:
        assert found["GF_SECURITY_ADMIN_PASSWORD"] == password
        assert "GF_AUTH_ANONYMOUS_ENABLED" not in found
    else:
        assert found["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
        assert found["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("password", ["", "long-enough-password"])
def test_a_new_password_is_set_in_the_database_of_an_earlier_grafana(
    systemd: bool, exists: bool, changed: bool, password: str
) -> None:
    """Grafana reads the password from its environment only when it creates the account."""
    tasks = yaml.safe_load((ROOT / "ansible/roles/grafana/tasks/main.yml").read_text())
    (block,) = [task["block"] for task in tasks if "block" in task]
    (reset,) = [task for task in block if "reset-admin-password" in str(task)]
    assert reset["no_log"] is True
    assert reset["ansible.builtin.command"]["argv"][-1] == "--password-from-stdin"
    environment = jinja2.Environment(autoescape=True)
    environment.tests["changed"] = bool
    found = environment.compile_expression(reset["when"])(
        ansible_facts={"service_mgr": "systemd" if systemd else "sysv"}, grafana_database={"stat": {"exists": exists}},
        grafana_environment=changed, grafana_admin_password=password,
    )  # fmt: skip
    assert found is (systemd and exists and changed and bool(password))


def test_the_conditions_of_the_role_are_booleans() -> None:
    """Ansible refuses a condition whose value is a text."""
    tasks = yaml.safe_load((ROOT / "ansible/roles/grafana/tasks/main.yml").read_text())
    conditions = [task["ansible.builtin.assert"]["that"] for task in tasks if "ansible.builtin.assert" in task]
    environment = jinja2.Environment(autoescape=True)
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    values = {
        "item": {"value": "a", "like": "a"}, "grafana_influx_token": "token", "influxdb_token": "other",
        "grafana_admin_password": "long-enough-password", "grafana_address": "127.0.0.1",
        "grafana_influx_insecure": False,
        "grafana_influx_url": "https://influx.example",
    }  # fmt: skip
    for condition in conditions:
        assert environment.compile_expression(condition)(**values) is True, condition
