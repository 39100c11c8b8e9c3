"""One run: its folder, its checkpoints, its progress."""
