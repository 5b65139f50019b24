"""The packaged checks: `pytest --pyargs testbed.checks --lab LAB.toml`, or `testbed check --lab LAB.toml`."""
