"""Deadlines of scenarios for tests that do not test deadlines: a pause of the machine for minutes exceeds none."""

from __future__ import annotations

from support.live import HANG_S
from testbed.scenario.schema import DeadlinesTable

PATIENT = dict.fromkeys(("announce_s", "command_s", "node_silence_s", "node_lost_s", "lease_ttl_s"), HANG_S)
PATIENT_DEADLINES = DeadlinesTable(**PATIENT)
PATIENT_TOML = "\n[deadlines]\n" + "".join(f"{name} = {value}\n" for name, value in PATIENT.items())
