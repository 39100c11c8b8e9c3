"""Published settings as YAML: `ffcil run NAME`."""
