"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Data = Annotated[Path | None, typer.Option(help="File or folder of the data set (default: $FFCIL_DATA or the cache).")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda if available).")]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Read files that a CSV or Parquet table names outside its own folder.")
]
Texts = list[str] | None
"""Values of an option that can be given several times."""
Imports = Annotated[Texts, typer.Option("--import", metavar="FILE", help="Python file that registers your methods.")]
Logs = Annotated[Texts, typer.Option("--log", metavar="NAME", help="Also log to tensorboard or wandb.")]
Assignments = Annotated[
    Texts, typer.Option("--set", metavar="KEY=VALUE", help="Set a field, such as train.batch=64; see `ffcil fields`.")
]


def listed(texts: Texts) -> list[str]:
    """`["a,b", "c"]` as `["a", "b", "c"]`."""
    return [part.strip() for text in texts or [] for part in text.split(",") if part.strip()]


def import_methods(files: Texts) -> None:
    """Run the Python files that register methods."""
    if files:
        from ffcil.methods import load_methods

        for file in files:
            load_methods(file)
