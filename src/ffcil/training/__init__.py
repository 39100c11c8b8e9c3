"""The training loop, and the engine that it runs on."""
