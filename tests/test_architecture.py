"""docs/architecture.md is true: its picture, its names, and the calls that its lists describe."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

import ffcil
from conftest import write_colours
from ffcil.cli import app
from ffcil.studies.executors.job import Job, Outcome, attempt
from ffcil.studies.executors.local import LocalExecutor
from studies import write_small_study

SOURCE = Path(ffcil.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
Edges = set[tuple[str, str]]


# --- the picture --------------------------------------------------------------------------------------------------


def drawn_boxes() -> dict[str, str]:
    """Kind (room or module) of every box."""
    kinds = {"[": "room", "(": "module"}
    return {name: kinds[bracket] for name, bracket in re.findall(r"^ +(\w+)([\[(])\"\1: ", PICTURE, re.MULTILINE)}


def drawn_arrows(arrow: str) -> Edges:
    lines = re.findall(rf"^ +(\w[\w &]*) {re.escape(arrow)} (\w[\w &]*)$", PICTURE, re.MULTILINE)
    return {(a, b) for left, right in lines for a in left.split(" & ") for b in right.split(" & ")}


def reachable(arrows: Edges) -> Edges:
    """All pairs that a path of arrows connects."""
    paths = set(arrows)
    while more := {(a, d) for a, b in paths for c, d in arrows if b == c} - paths:
        paths |= more
    return paths


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> tuple[set[str], set[str]]:
    """Rooms and modules that a file imports by statements, and by calls of `import_module`."""
    stated, called = set[str](), set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            stated |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            stated |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            called |= {str(part.value) for part in node.args if isinstance(part, ast.Constant)}
    known = {room_of(file) for file in SOURCE.rglob("*.py")}

    def rooms(names: set[str]) -> set[str]:
        return {name.split(".")[1] for name in names if name.startswith("ffcil.")} & known

    return rooms(stated), rooms(called)


def edges() -> tuple[Edges, Edges]:
    """Actual imports between rooms: by statements, and by calls."""
    stated, called = set(), set()
    for path in SOURCE.rglob("*.py"):
        room, (by_statement, by_call) = room_of(path), imports(path)
        if path != SOURCE / "__init__.py":
            stated |= {(room, other) for other in by_statement if other != room}
            called |= {(room, other) for other in by_call if other != room}
    return stated, called


def test_the_picture_has_every_room_and_module_and_no_other() -> None:
    rooms = {path.parent.name: "room" for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem: "module" for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    assert drawn_boxes() == rooms | modules


def test_imports_follow_the_arrows() -> None:
    stated, called = edges()
    arrows, dotted = drawn_arrows("-->"), drawn_arrows("-.->")
    assert stated - reachable(arrows) == set()
    assert called - reachable(arrows) == dotted


def test_every_arrow_is_an_import_and_none_leads_upward() -> None:
    arrows = drawn_arrows("-->")
    lines = [line for line in PICTURE.splitlines() if "->" in line]
    assert len(lines) == sum(bool(re.fullmatch(r" +[\w &]+ (-->|-\.->) [\w &]+", line)) for line in lines)
    assert {name for arrow in arrows for name in arrow} == set(drawn_boxes())
    assert arrows - edges()[0] == set()
    assert not [(a, b) for a, b in reachable(arrows) if a == b]


# --- the names ----------------------------------------------------------------------------------------------------


def find(name: str) -> Any:
    """The object of a dotted name, as its class or module holds it."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = inspect.getattr_static(found, part)
        return found
    raise AssertionError(f"{name} does not exist")


def names_in(text: str) -> list[str]:
    return re.findall(r"`(ffcil\.[\w.]+)`", text)


@pytest.mark.parametrize("name", sorted(set(names_in(PAGE))))
def test_every_name_exists(name: str) -> None:
    assert find(name) is not None


def test_every_path_exists() -> None:
    paths = [word for word in re.findall(r"`([\w./-]+)`", PAGE) if "/" in word]
    assert len(paths) > 5
    for path in paths:
        assert (REPOSITORY / path).exists() or (SOURCE / path).exists(), path


# --- the lists ----------------------------------------------------------------------------------------------------


def codes(name: str) -> set[CodeType]:
    """Code of a function; of a method, also the code of its overrides in subclasses. Empty for a class."""

    def code(function: Any) -> set[CodeType]:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        return {plain.__code__} if inspect.isfunction(plain) else set()

    parent, attribute = find(name.rpartition(".")[0]), name.rpartition(".")[2]
    if not inspect.isclass(parent):
        return code(find(name))
    classes = [parent]
    for one in classes:
        classes += one.__subclasses__()
    return set().union(*(code(vars(one)[attribute]) for one in classes if attribute in vars(one)))


@contextmanager
def traced() -> Iterator[dict[CodeType, int]]:
    """Functions that are called in the block, with the number of calls of other functions before the first call."""
    called: dict[CodeType, int] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        called.setdefault(frame.f_code, len(called))

    before = sys.gettrace()
    sys.settrace(note)  # It returns no function for lines and returns, so that only calls take longer.
    try:
        yield called
    finally:
        sys.settrace(before)


def described(command: str) -> list[str]:
    """Functions in the numbered list of a command, in their order."""
    section = PAGE.split(f"### `ffcil {command}`\n\n")[1].split("\n\n")[0]
    assert section.startswith("1. ")
    return [name for name in names_in(section) if codes(name)]


def check_calls(command: str, *arguments: str) -> None:
    """Run a command: it calls every function of its list, in the order of the list."""
    listed = described(command)
    assert len(listed) > 5
    with traced() as called:
        done = CliRunner().invoke(app, [command, *arguments])
    assert done.exit_code == 0, done.output
    first = {}
    for name in listed:
        found = [called[code] for code in codes(name) if code in called]
        assert found, f"{command} does not call {name}"
        first.setdefault(name, min(found))
    order = list(dict.fromkeys(listed))
    assert order == sorted(order, key=lambda name: first[name])


QUICK = ("--set", "method=icarl", "--set", "framework=paper", "--set", "train.epochs_scale=0.15", "--device", "cpu")
STEPS_ONLY = ("--set", "checkpoint_seconds=1e6")
"""No checkpoint within a step, however slow the machine: the list begins with the one after a step."""


@pytest.fixture
def small_images(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "images", classes=4, images=6)


def test_what_run_calls(tmp_path: Path, small_images: Path) -> None:
    stream = ("--set", "dataset=folder", "--set", "image_size=16", "--set", "arrivals.sizes=[2,2]", *STEPS_ONLY)
    check_calls("run", "glyphs", *QUICK, *stream, "--data", str(small_images), "--out", str(tmp_path / "run"))


def test_what_learn_calls(tmp_path: Path, small_images: Path) -> None:
    recipe = ("--recipe", "glyphs", "--set", "image_size=16")
    check_calls("learn", str(tmp_path / "model"), str(small_images), *recipe, *QUICK)


class Finished:
    """A job that was executed in this process, where its calls can be traced."""

    def __init__(self, job: Job) -> None:
        self.result = attempt(job)

    def began(self) -> bool:
        return True

    def outcome(self) -> Outcome:
        return self.result


def test_what_study_and_report_call(tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # `attempt` replaces it
    monkeypatch.setattr(LocalExecutor, "start", lambda executor, job: Finished(job))
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=1)
    check_calls("study", str(study), "--out", str(tmp_path / "study"), "--device", "cpu", "--jobs", "1")
    check_calls("report", str(tmp_path / "study"))
