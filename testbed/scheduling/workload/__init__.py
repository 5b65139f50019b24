"""Jobs and their sources: job tables, SWF logs, synthetic models, segments, load scaling."""
