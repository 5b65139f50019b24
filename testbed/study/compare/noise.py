"""The noise of a run's machines per second: the speed of their cores, and the CPU time that other load used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from testbed.study.compare.core_speeds import core_speeds
from testbed.study.compare.live import LiveRun
from testbed.study.compare.load import CONTROLLERS_MACHINE, foreign_shares, machines, replay_s

MEASUREMENTS = ("node", "guest", "controller")
_SCHEMA = {"node": pl.String(), "t_s": pl.Float64(), "core_speed": pl.Float64(), "foreign_cores": pl.Float64()}


def noise_frame(run: LiveRun, points: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return one row per node and second of the replay: `node`, `t_s`, `core_speed`, `foreign_cores`.

    `t_s` are wall seconds since the replay began. `core_speed` is relative to the speed while dedicated rates were
    measured. `foreign_cores` are the cores of the node's machine that load outside the lab used. Both are null where
    they were not recorded. `points` has the points of each of the `MEASUREMENTS`.
    """
    begin_s, end_s = replay_s(run)
    grid_s = np.arange(0.0, max(end_s - begin_s, 1.0), 1.0)
    speeds = core_speeds(run, points["node"])
    place = {name: number for number, name in enumerate(run.facts.node_names)}
    frames = []
    for machine, names in machines(run).items():
        here = points["controller"] if machine == CONTROLLERS_MACHINE else points["controller"].clear()
        shares = foreign_shares(run, names, points["node"], points["guest"], here)
        foreign: list[float | None] = [None] * grid_s.size
        if shares is not None:
            cores = float(run.facts.manifest["nodes"][names[0]]["machine_cores"])
            foreign = (cores * np.interp(grid_s, shares.at_s - begin_s, shares.share)).round(4).tolist()
        for name in names:
            speed: list[float | None] = [None] * grid_s.size
            if speeds is not None:
                speed = speeds.relative[:, place[name]].round(4).tolist()
            columns = {"node": [name] * grid_s.size, "t_s": grid_s, "core_speed": speed, "foreign_cores": foreign}
            frames.append(pl.DataFrame(columns, schema=_SCHEMA))
    return pl.concat(frames) if frames else pl.DataFrame(schema=_SCHEMA)
