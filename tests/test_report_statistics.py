"""Paired statistics: intervals compared with naive formulas and simulation, and the conclusions from them."""

from __future__ import annotations

import csv as csv_format
import io
import itertools
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ffcil.report import compare, load_runs
from ffcil.report.analyse.statistics import Change, bootstrap_interval, t_interval
from ffcil.report.render.tables import evidence_csv, evidence_markdown
from invented_runs import naive, write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


NAIVE_QUANTILES = {2: 12.706204736174694, 3: 4.302652729749464, 5: 2.7764451051977934, 9: 2.306004135204172}
"""Two-sided 95 % quantiles of Student's t distribution by number of pairs, from published tables."""


@pytest.mark.parametrize("pairs", NAIVE_QUANTILES)
def test_intervals_agree_with_naive_formulas(pairs: int) -> None:
    values = [float(value) for value in np.random.default_rng(pairs).normal(-3.0, 2.0, pairs)]
    mean = sum(values) / pairs
    variance = sum((value - mean) ** 2 for value in values) / (pairs - 1)
    half = NAIVE_QUANTILES[pairs] * (variance / pairs) ** 0.5
    assert t_interval(values) == pytest.approx((mean - half, mean + half), abs=1e-9)
    draws = np.random.default_rng(0).integers(pairs, size=(10_000, pairs)).tolist()
    means = sorted(sum(values[k] for k in draw) / pairs for draw in draws)

    def percentile(share: float) -> float:
        below, weight = divmod(share * (len(means) - 1), 1)
        return means[int(below)] * (1 - weight) + means[int(below) + 1] * weight

    assert bootstrap_interval(values) == pytest.approx((percentile(0.025), percentile(0.975)), abs=1e-9)


def test_equal_differences_have_an_interval_of_length_zero() -> None:
    change = Change((2.5,) * 6, "FF.org")
    assert (change.interval, change.bootstrap, change.conclusion) == ((2.5, 2.5), (2.5, 2.5), "differs from 0")


def test_bootstrap_interval_agrees_with_all_possible_resamples() -> None:
    """Three differences have 27 resamples, whose percentiles are the exact interval."""
    values = (1.0, 4.0, -2.5)
    means = sorted(statistics.mean(chosen) for chosen in itertools.product(values, repeat=3))
    assert bootstrap_interval(values) == pytest.approx((means[0], means[-1]))  # each has probability 1/27 > 2.5 %
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_bootstrap_interval_agrees_with_other_random_resamples() -> None:
    values = np.random.default_rng(5).normal(1.0, 2.0, 12)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, random_state=1)
    assert bootstrap_interval(tuple(values)) == pytest.approx(tuple(theirs.confidence_interval), abs=0.05)


@pytest.mark.parametrize("pairs", [5, 8])
def test_noise_is_called_different_from_0_in_five_percent_of_studies(pairs: int) -> None:
    """The t interval has its nominal error rate; the bootstrap interval has a higher one."""
    studies = np.random.default_rng(0).normal(0, 1, (4000, pairs))
    wrong = np.mean([Change(tuple(study), "FF.org").conclusion == "differs from 0" for study in studies])
    assert wrong == pytest.approx(0.05, abs=0.01)
    narrow = [bootstrap_interval(study) for study in studies[:300]]
    assert np.mean([low > 0 or high < 0 for low, high in narrow]) > 0.08


@pytest.mark.parametrize(
    ("differences", "conclusion", "same_sign"),
    [
        ((3.0,), "one pair", 1),
        ((3.0, 2.0), "may be 0", 2),
        ((3.0, 2.9), "too few pairs", 2),
        ((3.0, -2.0), "may be 0", 1),
        ((1.0, 2.0, 3.0, 2.0, 1.5), "differs from 0", 5),
        ((-1.0, -2.0, -3.0, 4.0, -1.5), "may be 0", 4),
    ],
)
def test_conclusions_from_differences(differences: tuple[float, ...], conclusion: str, same_sign: int) -> None:
    change = Change(differences, "FF.org")
    assert (change.conclusion, change.same_sign) == (conclusion, same_sign)


def test_evidence_tables_agree_with_paired_differences(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    lines = list(csv_format.DictReader(io.StringIO(evidence_csv(rows))))
    first = next(line for line in lines if (line["setting"], line["metric"]) == ("FF.ours", "last"))
    truth = [naive("FF.ours", seed, "linear")[1] - naive("FF.org", seed, "linear")[1] for seed in (0, 1, 2)]
    assert [float(value) for value in first["differences"].split()] == pytest.approx(truth)
    assert float(first["difference"]) == pytest.approx(statistics.mean(truth))
    assert float(first["std"]) == pytest.approx(statistics.stdev(truth))
    interval = stats.ttest_1samp(truth, 0).confidence_interval(0.95)
    assert (float(first["low"]), float(first["high"])) == pytest.approx(tuple(interval))
    assert (float(first["bootstrap_low"]), float(first["bootstrap_high"])) == pytest.approx((min(truth), max(truth)))
    text = evidence_markdown(rows)
    assert "| 95% t interval | 95% bootstrap |" in text
    assert "With fewer than 5 pairs no difference is called real" in text
