"""The classifier that keeps learning from users' own images."""
