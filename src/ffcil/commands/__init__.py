"""The commands, a file each; `ffcil.cli` attaches them."""
