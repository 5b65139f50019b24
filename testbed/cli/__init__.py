"""Command line: thin; parse, call, print. Commands are declared here and carried out in `bodies`, see `deferred`."""
