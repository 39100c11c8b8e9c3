"""`ffcil forget`, `rename`, `correct`, `undo` and `history`: changes of a classifier, and the list of them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.classifier import loaded, report_skipped
from ffcil.commands.options import AllowOutside, AsJson, Assignments, Device, Imports, Model, SkipBad, import_methods
from ffcil.commands.output import print_json, print_table, stoppable
from ffcil.errors import printable

NAMED = 4
"""Largest number of classes of a change that the history names. `--json` has all of them."""


def forget(
    model: Model,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Names of the classes to forget.")],
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Also remove all earlier versions, which still have the classes.")
    ] = False,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
) -> None:
    """Remove classes, as if they had never been learned. The method must support it, as anyarrival does.

    Example: ffcil forget model husky wolf
    """
    from ffcil.classifier.changing import changing
    from ffcil.config.resolve import parse_assignments

    import_methods(imports)
    changes = parse_assignments(assignments or [])
    with stoppable(""), changing(model, device, not everywhere, changes) as classifier:
        classifier.forget(classes)
    print(printable(f"{model} has forgotten {', '.join(dict.fromkeys(classes))}: version {classifier.version}"))


def rename(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Current name of the class.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="New name; no class may have it yet.")],
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
) -> None:
    """Give a class another name.

    Example: ffcil rename model huskey husky
    """
    from ffcil.classifier.changing import changing
    from ffcil.config.resolve import parse_assignments

    import_methods(imports)
    with stoppable(""), changing(model, device, changes=parse_assignments(assignments or [])) as classifier:
        classifier.rename(old, new)
    print(printable(f"{model}: {old} is called {new} now: version {classifier.version}"))


def correct(
    model: Model,
    images: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Learned images with the right labels: .csv (path,label) or folder."),
    ],
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
) -> None:
    """Correct labels of learned images, as if right from the start. The method must support it, as anyarrival does.

    A label may be a new class. Paths are relative to the file.

    Example: ffcil correct model right.csv
    """
    from ffcil.classifier.changing import changing
    from ffcil.config.resolve import parse_assignments

    import_methods(imports)
    with stoppable(""), changing(model, device, changes=parse_assignments(assignments or [])) as classifier:
        notes = classifier.correct(images, allow_outside=allow_outside, skip_bad=skip_bad)
    if skip_bad:
        report_skipped([images], classifier.size)
    count = f"{notes['new_images']:,} image(s)"
    print(printable(f"{model}: {count} have the labels of {images} now: version {classifier.version}"))


def undo(
    model: Model,
    to: Annotated[
        int | None, typer.Option(metavar="VERSION", help="Version to return to (default: before the last change).")
    ] = None,
) -> None:
    """Return to an earlier version. No version is removed, so `ffcil undo MODEL --to VERSION` can go forward again.

    Example: ffcil undo model --to 3
    """
    from ffcil.classifier.changing import undo as return_to

    print(printable(f"{model} is at version {return_to(model, to)} now"))


def history(
    model: Model,
    plot: Annotated[Path | None, typer.Option(help="Write a figure to this file (svg, png or pdf).")] = None,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed a classifier and when, its accuracy then and now, and what it keeps.

    The accuracy is that on the learned images, each left out in turn; only anyarrival knows it.

    Example: ffcil history model --plot history.png
    """
    from ffcil.classifier.versions import Versions

    with loaded(model, assignments, device, imports) as classifier:
        changes, kept, version = classifier.history(), classifier.kept(), classifier.version
    others = [number for number in Versions(model).numbers() if number != version]
    if plot is not None:
        from ffcil.report.render.figures import plot_history

        plot_history(changes, plot)
        print(f"wrote {plot}", file=sys.stderr)
    if as_json:
        print_json({"version": version, "other_versions": others, "kept": kept, "changes": changes})
        return
    print_table(_table(changes, version))
    print(printable(f"version {version} of {model} knows {len(classifier.class_names)} class(es)"))
    print("other versions to return to: " + (", ".join(map(str, others)) or "none"))
    parts = [
        f"{what} of {part['images']:,} image(s), {part['megabytes']:.1f} MB"
        for what, part in kept.items()
        if part["images"]
    ]
    print("kept of the images: " + ("; ".join(parts) or "nothing"))


def _table(changes: list[dict[str, Any]], current: int) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption="% right of left-out images: all classes then; new classes then and now")
    for title in ("version", "time (UTC)"):
        table.add_column(title, no_wrap=True)
    table.add_column("change", min_width=12)  # with a wider column, the table would not fit into 80 columns
    for title in ("images", "all", "new", "now"):
        table.add_column(title, justify="right")
    for change in changes:
        accuracies = (change[key] for key in ("accuracy", "new_accuracy", "accuracy_now"))
        table.add_row(
            f"{change['version']}{' *' if change['version'] == current else ''}",
            change["time"][:16].replace("T", " "),
            escape(printable(describe_change(change))),
            f"{sum(change['images'].values()):,}" if change["images"] else "",
            *("" if accuracy is None else f"{accuracy:.1f}" for accuracy in accuracies),
        )
    return table


def describe_change(change: dict[str, Any]) -> str:
    """A change in words. If it has many classes, only some are named."""
    new, gone = _some(change["new"]), _some(change["gone"])
    if change["kind"] == "rename":
        return f"rename {gone} to {new}"
    if change["kind"] == "forget":
        return f"forget {gone}"
    if change["kind"] == "correct":
        return f"correct to {_some(change['images'])}"
    again = _some([name for name in change["images"] if name not in change["new"]])
    return f"{change['kind']} " + "; ".join(filter(None, (new, again and f"more of {again}")))


def _some(names: Iterable[str]) -> str:
    first, rest = (names := list(names))[:NAMED], len(names) - NAMED
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
