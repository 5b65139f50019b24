"""The packaged checks: `pytest --pyargs testbed.study.checks --scenario LAB.toml`, or `testbed check LAB.toml`."""
