"""The lines about skipped tests at the end of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("processes", ["0", "2"])
def test_skipped_tests_are_explained_at_the_end(tmp_path: Path, processes: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n"
        "testpaths = ['tests']\n"
        "addopts = \"-m 'not slow and not gpu'\"\n"
        "markers = ['slow', 'gpu']\n"
    )
    (tmp_path / "tests" / "test_some.py").write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "def test_package(): pytest.importorskip('no_such_package')\n"
        "@pytest.mark.parametrize('k', [1, 2])\n"
        "@pytest.mark.skipif(True, reason='no Chromium; apt-get install chromium')\n"
        "def test_browser(k): pass\n"
        "@pytest.mark.slow\n"
        "def test_slow(): pass\n"
    )
    plugins = [part for name in ("xdist.plugin", "skips", "no:cacheprovider") for part in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", processes]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Other plugins take longer to import than the tests to run.
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
    *_, package, browser, slow, gpu, total = filter(None, done.stdout.splitlines())
    assert package == "1 test skipped: no_such_package is not installed; pip install no_such_package"
    assert browser == "2 tests skipped: no Chromium; apt-get install chromium"
    assert slow == "tests marked slow were not run (they take minutes): pytest -m slow"
    assert gpu == "tests marked gpu were not run (they need a CUDA device): pytest -m gpu"
    assert "1 passed, 3 skipped" in total
