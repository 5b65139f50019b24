"""Jobs and where they come from: job tables, SWF logs, synthetic models, segments, load scaling."""
