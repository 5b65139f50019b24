"""The live dashboard of runs: a separate process that follows run directories and serves one page to browsers."""
