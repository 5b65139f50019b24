"""A page of HTML that needs nothing else: its figures, its tables and its style."""
