"""Tables and statistics from records."""
