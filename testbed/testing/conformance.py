"""The conformance suite for all drivers: the core, and each optional protocol that a driver implements."""

from __future__ import annotations

from testbed.testing.core import CoreConformance
from testbed.testing.guesses import GuessesConformance
from testbed.testing.joins import JoinsConformance
from testbed.testing.migrates import MigratesConformance
from testbed.testing.natives import NativesConformance
from testbed.testing.saves import SavesConformance
from testbed.testing.shares import SharesConformance


class DriverConformance(
    CoreConformance,
    SavesConformance,
    MigratesConformance,
    JoinsConformance,
    NativesConformance,
    SharesConformance,
    GuessesConformance,
):
    """Base class for the tests of a driver: override `make`; `testbed.testing.suite.DriverSuite` lists the settings.

    Tests of a protocol that the driver does not implement are skipped.
    """
