"""The commands, by subject; `ffcil.cli` attaches them."""
