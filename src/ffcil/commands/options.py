"""Options that several commands share."""

import traceback
from pathlib import Path
from typing import Annotated

import typer

from ffcil.errors import InputError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the classifier.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
FalseAlarms = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Share of images of known classes that may be called unknown: 1% or 0.01 (default: 5% if the method can "
        "tell unknown images).",
    ),
]
Data = Annotated[Path | None, typer.Option(help="File or folder of the data set (default: $FFCIL_DATA or the cache).")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda if available).")]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Read files that a CSV or Parquet table names outside its own folder.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Name and skip images that cannot be read, now and when read again.")
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


def parse_share(text: str, option: str) -> float:
    """`1%` and `0.01` as 0.01."""
    number = text.strip()
    try:
        share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"Cannot read {option} {text!r}: write a share between 0 and 1, such as 0.01 or 1%.")
    return share


def import_methods(files: Texts) -> None:
    """Run the Python files that register methods."""
    if files:
        from ffcil.methods import load_methods

        for file in files:
            try:
                load_methods(file)
            except InputError:
                raise
            except Exception as error:  # anything that the user's own code raises
                raise InputError(f"{_place(file, error)}: {type(error).__name__}: {error}; correct it.") from error


def _place(file: str, error: Exception) -> str:
    """The file, and the last of its lines that led to an error."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = [line for name, line in places if Path(name).resolve() == Path(file).resolve()]
    return f"{file} line {lines[-1]}" if lines else file
