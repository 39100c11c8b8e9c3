"""The commands, one module per group; `ffcil.cli` registers them."""
