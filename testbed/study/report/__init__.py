"""The views of runs and calibrations: terminal display, browser page, and report pages."""
