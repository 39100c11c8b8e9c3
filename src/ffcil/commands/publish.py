"""`ffcil publish`: finished runs as single JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def publish(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    to: Annotated[Path, typer.Option("--to", help="Folder of the published files, for example results/NAME.")],
) -> None:
    """Write one JSON file per finished run: configuration, environment, records and confusion counts.

    `ffcil report` and `ffcil compare` read these files like the folders of runs.
    """
    from ffcil.runs.published import publish as publish_run

    for run in runs:
        print(publish_run(run, to))
