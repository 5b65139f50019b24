"""Self-contained HTML pages: their figures, tables and style."""
