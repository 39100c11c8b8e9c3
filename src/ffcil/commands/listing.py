"""`ffcil methods` and `ffcil fields`: the methods and the fields of a configuration."""

import json
import sys
from typing import Any

from ffcil.commands.options import AsJson, Imports, import_methods
from ffcil.commands.output import print_json, print_table


def methods(as_json: AsJson = False, imports: Imports = None) -> None:
    """List the methods and their own fields."""
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    from ffcil.methods import METHODS

    import_methods(imports)
    rows = [{"name": name, **_describe(method)} for name, method in sorted(METHODS.items())]
    if as_json:
        print_json(rows)
        return
    console = Console(highlight=False)
    for row in rows:
        scored, *others = row["classifiers"]
        console.print(f"[bold]{row['name']}[/bold]  {', '.join([f'{scored} (scored)', *others])}")
        lines = [(4, row["about"])]
        for name, info in row["options"].items():
            lines.append((6, f"options.{name} = {json.dumps(info['default'])}  {' '.join(info['about'].split())}"))
        for indent, line in lines:
            console.print(Padding(escape(line), (0, 0, 0, indent), expand=False))


def _describe(method: Any) -> dict[str, Any]:
    fields = method.Config.model_fields.items()
    return {
        "title": method.title,
        "about": (sys.modules[method.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " "),
        "paper": method.paper or None,
        "classifiers": list(method.classifiers),
        "uses_memory": method.uses_memory,
        "alignment": method.own_alignment,
        "options": {name: {"default": info.default, "about": info.description or ""} for name, info in fields},
    }


def fields(as_json: AsJson = False) -> None:
    """List every field that `ffcil run --set` accepts."""
    from rich.table import Table

    from ffcil.config.resolve import describe_fields

    rows = describe_fields()
    if as_json:
        print_json(rows)
        return
    table = Table("field", "default", "meaning", title="ffcil fields: ffcil run RECIPE --set FIELD=VALUE")
    for row in rows:
        name = f"{row['name']} ({row['kind']})" if "kind" in row else row["name"]
        table.add_row(name, "(recipe)" if row["needed"] else json.dumps(row["default"]), row["about"])
    print_table(table)
