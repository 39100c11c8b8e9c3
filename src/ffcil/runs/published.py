"""Published runs: one JSON file per run, and one file per set of images that all its runs share."""

import base64
import hashlib
import itertools
import json
import re
import shlex
import zlib
from pathlib import Path
from typing import Any

from ffcil.atomic import write_whole
from ffcil.config.earlier import renewed
from ffcil.errors import InputError
from ffcil.metrics import Confusion, CountTable
from ffcil.runs.folder import RunFolder
from ffcil.runs.stored import Fields, StoredRun, check_config, check_fields, check_part, check_record, check_sizes

SUFFIX = ".run.json"
_CHECKED = ("summary", "environment", "method")
_DATA_FILE = re.compile(r"data-[0-9a-f]+\.json")
_PARTS = ("config", "arrivals", "data", "method", "environment", "summary", "records", "counts")
_FOLDERS = re.compile(r"""(?<![^\s"'=,\[(])(?:~[^\s"'/]*)?/(?:[^\s"'/]+/)*""")
"""Folders of an absolute path within a text."""


def publish(folder: Path, to: Path) -> Path:
    """Write the run in a folder to the folder `to`. Returns the path of the file."""
    run = RunFolder(folder).load()
    if not run.finished:
        raise InputError(
            f"{folder} is unfinished ({len(run.records)} of {len(run.arrivals['sizes'])} steps): finish the run first."
        )
    path = to / f"{folder.resolve().name}{SUFFIX}"
    document = describe(run)
    if path.exists() and not _same_run(_read(path), document):
        raise InputError(f"{path} holds another run: rename the folder {folder}, or choose another --to.")
    to.mkdir(parents=True, exist_ok=True)
    write_document(path, document, run.data)
    return path


def describe(run: StoredRun) -> Fields:
    """The content of the published file of a run, without the names of folders of the machine."""
    summary = {name: value for name, value in (run.summary or {}).items() if name != "folder"}
    return {
        "config": _without_folders(run.config),
        "arrivals": run.arrivals,
        "data": _data_name(run.data) if run.data else None,
        "method": run.method_facts,
        "environment": without_machine_paths(run.environment),
        "summary": summary,
        "records": run.records,
        "counts": _pack(run.tables),
    }


def without_machine_paths(environment: Fields) -> Fields:
    """The environment of a run, in which paths are replaced by their last names, also in the command."""
    command = [word.split("=", 1) for word in _words(environment.get("command", ""))]
    stripped = {"command": shlex.join("=".join(_without_folders(word)) for word in command)} if command else {}
    return {name: _without_folders(value) for name, value in {**environment, **stripped}.items()}


def write_document(path: Path, document: Fields, data: Fields) -> None:
    """Write a published run, one line per part and per record, and the fingerprint of its images beside it."""
    if data:
        write_whole(path.with_name(document["data"]), _line(data) + b"\n")
    lines = []
    for name, value in document.items():
        content = b"[\n" + b",\n".join(map(_line, value)) + b"\n]" if name == "records" else _line(value)
        lines.append(_line(name) + b": " + content)
    write_whole(path, b"{\n" + b",\n".join(lines) + b"\n}\n")


def load_published(path: Path) -> StoredRun:
    """Read a published run."""
    document = _read(path, _PARTS)
    config, arrivals = check_config(document["config"], path), check_fields(document["arrivals"], path)
    sizes = check_sizes(arrivals, path)
    summary, environment, method = (check_part(name, document[name], path) for name in _CHECKED)
    if not isinstance(document["records"], list):
        raise InputError(f"{path} is damaged (it has no list of records): publish the run again.")
    records = [
        check_record(record, k, f"Record {k} of {path}") for k, record in enumerate(document["records"], start=1)
    ]
    if len(records) != len(sizes):
        raise InputError(f"{path} is damaged ({len(records)} records of {len(sizes)} steps): publish the run again.")
    return StoredRun(
        folder=path.with_name(path.name.removesuffix(SUFFIX)),
        config=config,
        arrivals=arrivals,
        records=records,
        summary=summary,
        environment=environment,
        tables=_unpack(document["counts"], sizes, path),
        finished=True,
        data=_read_data(path, document["data"]) if document["data"] else {},
        method_facts=method,
    )


def _read_data(path: Path, name: Any) -> Fields:
    """The fingerprint of the images of a published run, from the file beside it."""
    if not isinstance(name, str) or not _DATA_FILE.fullmatch(name):
        raise InputError(f"{path} is damaged (it has no name of a file of images): publish the run again.")
    beside = path.with_name(name)
    return check_part("data", _read(beside), beside)


def find_published(place: Path) -> list[Path]:
    """Published runs at or below a place."""
    return sorted(place.rglob(f"*{SUFFIX}"))


def _read(path: Path, needed: tuple[str, ...] = ()) -> Fields:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing: restore it, or publish the run again.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged (it is not JSON: {error}): publish the run again.") from None
    return check_fields(value, path, needed)


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _same_run(one: Fields, other: Fields) -> bool:
    other = json.loads(json.dumps(other))
    return (renewed(one.get("config") or {}), one.get("records")) == (other["config"], other["records"])


def _data_name(data: Fields) -> str:
    return f"data-{hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]}.json"


def _words(command: Any) -> list[str]:
    """The words of a command, of which early runs stored a list."""
    return [str(word) for word in command] if isinstance(command, list) else shlex.split(str(command))


def _without_folders(value: Any) -> Any:
    """The same value, in which absolute paths and paths to parent folders are replaced by their last names."""
    if isinstance(value, dict):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    return Path(value).name if value.startswith(("/", "~", "../")) else _FOLDERS.sub("", value)


def _pack(tables: dict[str, CountTable]) -> str:
    """Base64 text of zlib-compressed JSON: for each classifier and step the rows, columns and values of the counts."""
    cells = {
        name: [[array.tolist() for array in (c.rows, c.columns, c.values)] for c in table.counts]
        for name, table in tables.items()
    }
    content = json.dumps(cells, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(content, level=9)).decode()


def _unpack(text: Any, sizes: tuple[int, ...], where: Path) -> dict[str, CountTable]:
    seen = list(itertools.accumulate(sizes))
    try:
        cells = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        return {
            name: CountTable(sizes, tuple(Confusion(n, *step) for n, step in zip(seen, steps, strict=True)))
            for name, steps in cells.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError, zlib.error):
        raise InputError(f"{where} is damaged (its counts cannot be read): publish the run again.") from None
