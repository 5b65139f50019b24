"""The packaged checks: `pytest --pyargs testbed.study.checks --lab LAB.toml`, or `testbed check --lab LAB.toml`."""
