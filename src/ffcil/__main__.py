"""`python -m ffcil` is `ffcil`."""

from ffcil.cli import main

main()
