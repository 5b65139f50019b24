"""The fixtures of tests on real logs."""

from support.workload.logs import hpc2n_log, hpc2n_path, real_log

__all__ = ["hpc2n_log", "hpc2n_path", "real_log"]
