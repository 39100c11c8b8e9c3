"""Records of runs as values."""
