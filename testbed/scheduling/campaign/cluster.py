"""Executes units of work on an existing Dask cluster; workers need the same project version, but no shared files."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from importlib import import_module
from itertools import islice
from typing import Any

from testbed.errors import RunError, UserError
from testbed.scheduling.campaign.plan import Unit
from testbed.scheduling.campaign.work import UnitResult, do_unit, failed
from testbed.scheduling.campaign.workers import Begin

_CONNECT_S = 10
_AHEAD = 3  # units that wait at the scheduler, per thread of its workers


def work_on_cluster(units: Iterable[Unit], code: str, begin: Begin, address: str) -> Generator[UnitResult, None, None]:
    """Execute units on the workers of the scheduler at `address`, such as tcp://host:8786.

    Dask reassigns the units of dead workers. Raises UserError when there is no scheduler, RunError when the scheduler
    is lost, or when a worker has another version of the code.
    """
    distributed: Any = import_module("distributed")  # an extra, without types

    for name in ("distributed", "distributed.client"):  # the error below replaces Dask's tracebacks
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"--scheduler {address}: no Dask scheduler answers there: {error}") from error
    source = iter(units)
    under_way: dict[Any, Unit] = {}
    completed = distributed.as_completed(loop=client.loop)
    try:
        while True:
            room = max(_AHEAD * _threads(client), _AHEAD) - len(under_way)
            for unit in islice(source, max(room, 0)):
                begin(unit)
                future = client.submit(do_unit, unit, code, key=f"dfrs-testbed-{unit.name}", pure=False)
                under_way[future] = unit
                completed.add(future)
            if not under_way:
                return
            future = next(completed)
            unit = under_way.pop(future)
            yield _result(future, unit, code)
            future.release()
    finally:
        client.cancel(list(under_way), force=True)
        client.close(timeout=_CONNECT_S)


def _threads(client: Any) -> int:
    return sum(client.nthreads().values())


def _result(future: Any, unit: Unit, code: str) -> UnitResult:
    if future.status == "cancelled":
        raise RunError("the Dask scheduler is lost; start the campaign again when it is back, to continue from here")
    try:
        result: UnitResult = future.result()
    except import_module("distributed").KilledWorker as error:
        return failed(unit, code, f"its Dask workers died: {error}")
    return result
