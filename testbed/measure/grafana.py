"""Grafana dashboards, generated from the Flux queries and the schema, so that they always fit the measurements.

`scripts/grafana-dashboards` writes them into the package. The JSON has schema version 39, for Grafana 10 and later.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from testbed.measure.flux import AMOUNTS, PHASES, QUERIES, RATES

DATA_SOURCE: Final = {"type": "influxdb", "uid": "testbed-influxdb"}
UNITS: Final = {
    "": "none", "1": "percentunit", "s": "s", "MiB": "mbytes", "MiB/s": "MiBs", "B": "bytes",
    "cores": "suffix: cores", "nodes": "suffix: nodes",
}  # fmt: skip
_OKABE_ITO: Final = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000")
_STATES: Final = {
    "submitted": "#999999", "running": "#009E73", "paused": "#E69F00", "resumed": "#56B4E9", "moving": "#CC79A7",
    "withdrawn": "#000000", "again": "#F0E442", "done": "#0072B2", "failed": "#D55E00",
}  # fmt: skip
_COLUMNS, _HEIGHT = 24, 8

Style = Literal["line", "step", "points", "bars", "states"]
_NODE, _FIELD = "${__field.labels.node}", "${__field.name}"
_GUEST = "job ${__field.labels.job}.${__field.labels.task} on " + _NODE
_JOB, _VERB = "job ${__field.labels.job}", "${__field.labels.verb}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: queries, each with the name of its series, drawn in one style; `width` in columns of 24."""

    queries: tuple[tuple[str, str], ...]
    style: Style = "line"
    title: str = ""
    width: int = 12


_NODES: Final = (
    Panel((("node-cpu", _NODE),)),
    Panel((("node-memory", _NODE),)),
    Panel((("node-disk", f"{_NODE}, {_FIELD}"),)),
    Panel((("node-network", f"{_NODE}, {_FIELD}"),)),
)
RUN: Final[dict[str, tuple[Panel, ...]]] = {
    "Jobs and decisions": (
        Panel((("jobs", _FIELD),), "step", width=8),
        Panel((("yield", _FIELD),), "step", width=8),
        Panel((("demand", _FIELD),), "step", width=8),
        Panel((("job-states", _JOB),), "states", width=24),
    ),
    "Rescheduling": (
        Panel((("penalties", _FIELD),), "bars", width=24),
        Panel((("moved", _FIELD),), "bars"),
        Panel((("move-rates", _FIELD),), "points"),
    ),
    "CPU caps and guests": (
        Panel((("cap", f"{_GUEST}, {_FIELD}"),), "points", width=24),
        Panel(
            (("guest-cpu", f"{_GUEST}, used"), ("guest-cap", f"{_GUEST}, cap")), "line", "CPU of guests, used and cap"
        ),
        Panel((("guest-memory", _GUEST),)),
        Panel((("cap-drift", f"{_GUEST}, {_FIELD}"),), "points", width=24),
    ),
    "Supersteps": (
        Panel((("superstep-noise", _JOB),)),
        Panel((("superstep", _JOB),)),
    ),
    "Nodes": _NODES,
    "The testbed itself": (
        Panel((("round-trip-p50", "median"), ("round-trip-p99", "99th percentile")), "line", "Bus round trip", 8),
        Panel((("decide", "decide"),), "points", width=8),
        Panel((("operations", _VERB),), "points", width=8),
        Panel((("agent-cpu", _NODE),)),
        Panel((("agent-memory", _NODE),)),
    ),
}
LAB: Final[dict[str, tuple[Panel, ...]]] = {
    "Nodes": (
        Panel((("node-state", _NODE),), "states", width=24),
        *_NODES,
    ),
    "Agents and bus": (
        Panel((("agent-cpu", _NODE),), width=8),
        Panel((("agent-memory", _NODE),), width=8),
        Panel((("round-trip-nodes", _NODE),), width=8),
    ),
}


def dashboards() -> dict[str, str]:
    """Return the text of each dashboard by the name of its file."""
    return {
        "run.json": _text(_dashboard("Run", RUN, all_runs=False)),
        "lab.json": _text(_dashboard("Lab", LAB, all_runs=True)),
    }


def _text(dashboard: dict[str, object]) -> str:
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _dashboard(name: str, rows: dict[str, tuple[Panel, ...]], *, all_runs: bool) -> dict[str, object]:
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in rows.items():
        panels.append(_row(title, y, len(panels) + 1))
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}
            panels.append(_panel(panel, place, len(panels) + 1, all_runs=all_runs))
            x += panel.width
        y += _HEIGHT
    variables = [_variable("lab", "Lab", _tag_values("lab", "true"))]
    if not all_runs:
        variables.append(_variable("run", "Run", _tag_values("run", 'r.lab == "${lab}"')))
    return {
        "uid": f"testbed-{name.lower()}",
        "title": name,
        "description": "All nodes of a lab over all runs" if all_runs else "One run of the testbed",
        "tags": ["testbed"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "5s",
        "timezone": "browser",
        "templating": {"list": variables},
        "panels": panels,
    }


def _tag_values(tag: str, predicate: str) -> str:
    return (
        'import "influxdata/influxdb/schema"\n\n'
        f'schema.tagValues(bucket: v.defaultBucket, tag: "{tag}", predicate: (r) => {predicate}, '
        "start: v.timeRangeStart, stop: v.timeRangeStop)"
    )


def _variable(name: str, label: str, flux: str) -> dict[str, object]:
    return {
        "type": "query", "name": name, "label": label, "datasource": DATA_SOURCE, "query": flux,
        "refresh": 2,  # whenever the time range changes
        "sort": 2,  # descending: names of runs begin with their date
        "multi": False, "includeAll": False,
    }  # fmt: skip


def _row(title: str, y: int, number: int) -> dict[str, object]:
    place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
    return {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, place: dict[str, int], number: int, *, all_runs: bool) -> dict[str, object]:
    queries = [QUERIES[name] for name, _ in panel.queries]
    letters = "ABCDEF"[: len(queries)]
    names = [
        {"matcher": {"id": "byFrameRefID", "options": letter}, "properties": [{"id": "displayName", "value": series}]}
        for letter, (_, series) in zip(letters, panel.queries, strict=True)
    ]
    colours = [
        {
            "matcher": {"id": "byRegexp", "options": f"/\\b{field}\\b/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": _colour(field)}}],
        }
        for query in queries
        for field in query.fields
        if field in PHASES + AMOUNTS + RATES
    ]
    defaults: dict[str, object] = {"unit": UNITS[queries[0].unit], "custom": _custom(panel.style)}
    if panel.style == "states":
        defaults |= {"color": {"mode": "fixed", "fixedColor": _OKABE_ITO[4]}, "mappings": _mappings()}
    else:
        defaults |= {"color": {"mode": "palette-classic"}, "min": 0}
    return {
        "type": "state-timeline" if panel.style == "states" else "timeseries",
        "id": number,
        "title": panel.title or queries[0].title,
        "description": "\n\n".join(query.meaning() for query in queries),
        "gridPos": place,
        "datasource": DATA_SOURCE,
        "targets": [
            {"refId": letter, "datasource": DATA_SOURCE, "query": query.grafana(all_runs=all_runs)}
            for letter, query in zip(letters, queries, strict=True)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": names + colours},
        "options": _options(panel.style),
    }


def _colour(field: str) -> str:
    """Return the colour of a phase, which is the same in every panel."""
    for names in (PHASES, AMOUNTS, RATES):
        if field in names:
            return _OKABE_ITO[names.index(field)]
    raise KeyError(field)


def _mappings() -> list[dict[str, object]]:
    options = {state: {"color": colour, "index": index} for index, (state, colour) in enumerate(_STATES.items())}
    options["true"] = {"text": "online", "color": _STATES["running"], "index": len(options)}
    options["false"] = {"text": "away", "color": _STATES["failed"], "index": len(options)}
    return [{"type": "value", "options": options}]


def _custom(style: Style) -> dict[str, object]:
    if style == "states":
        return {"fillOpacity": 80, "lineWidth": 0}
    drawn: dict[Style, dict[str, object]] = {
        "line": {"drawStyle": "line", "lineInterpolation": "linear"},
        "step": {"drawStyle": "line", "lineInterpolation": "stepAfter"},
        "points": {"drawStyle": "points", "pointSize": 5},
        "bars": {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal", "group": "A"}},
    }
    return drawn[style]


def _options(style: Style) -> dict[str, object]:
    if style == "states":
        return {
            "showValue": "auto", "mergeValues": True, "rowHeight": 0.9, "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        }  # fmt: skip
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
