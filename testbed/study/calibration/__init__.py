"""Calibration: designed experiments on live nodes, and the overhead model that they support."""
