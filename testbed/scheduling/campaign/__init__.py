"""Campaigns: traces x loads x policies x periods as a sweep on disk, and the tables and figures of its results."""
