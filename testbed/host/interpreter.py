"""Command lines of Python processes that import the installed packages."""

from __future__ import annotations

import sys


def module_argv(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line that runs a module as a program in a process of its own.

    `-P` keeps the current folder out of the module search path. Without it a folder that holds another `testbed/`, such
    as a clone of the project, would replace the installed package in the new process.
    """
    return [python, "-P", "-m", module, *arguments]
