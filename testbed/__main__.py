"""Entry point of `python -m testbed`."""

from testbed.cli.main import main

main()
