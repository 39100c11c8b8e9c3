"""Reading of YAML with limits, because a small file can describe a value that exhausts the memory."""

from typing import Any

import yaml

from ffcil.errors import InputError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast, because a study reads many recipes
_DEEPEST = 100  # levels of nesting; the C library overflows its stack at some 10,000
_REPEATED = 100_000  # values that aliases may repeat


def read_yaml(what: str, text: str) -> dict[str, Any]:
    """Read a YAML mapping of fields; `what` names the text in errors."""
    try:
        content = read_value(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{what} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{what} must be a YAML mapping of fields, not {type(content).__name__}.")
    return content


def read_value(text: str) -> Any:
    """Read any YAML value. A value that is nested too deeply or repeats too much is a `yaml.YAMLError`."""
    _check_extent(text)
    return yaml.load(text, _LOADER)


def _check_extent(text: str) -> None:
    """Raise an error if the value is nested too deeply, or if its aliases repeat too many values."""
    sizes: dict[str, int] = {}  # values in each anchored node
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and number of values before the node
    count = repeated = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in sizes:  # otherwise the anchor is unknown, which the loader reports, or contains itself
                repeated += sizes[event.anchor]
                count += sizes[event.anchor]
            elif any(anchor == event.anchor for anchor, _ in open_nodes):
                raise yaml.YAMLError(f"alias *{event.anchor} is part of the value that it repeats")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_nodes) > _DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {_DEEPEST} levels deep")
        if repeated > _REPEATED:
            raise yaml.YAMLError(f"its aliases repeat more than {_REPEATED:,} values")
