# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "scipy==1.17.1", "statsmodels==0.15.0"]
# ///
"""Makes `golden.json` in this folder: values of numpy, scipy and statsmodels that the tests of `stats` must agree with.

    uv run src/stats/golden/make.py
"""

import json
from pathlib import Path

import numpy as np
from scipy import special, stats
from statsmodels.stats.multitest import multipletests

random = np.random.default_rng(2026)


def listed(values):
    return [float(value) for value in values]


def special_functions():
    beta = [
        (x, a, b, special.betainc(a, b, x))
        for a, b in [(0.5, 0.5), (0.5, 5.5), (2.0, 0.5), (3.7, 8.2), (100.0, 0.5), (40.0, 60.0)]
        for x in [1e-8, 0.03, 0.25, 0.5, 0.9, 0.999]
    ]
    gamma = [(x, special.gammaln(x)) for x in [0.01, 0.3, *np.arange(0.5, 15, 0.75), 33.3, 100.5, 1e4]]
    normal = [(x, stats.norm.sf(x)) for x in [-9.0, -2.9, -1.0, *np.arange(0, 6, 0.25), 9.0, 20.0, 37.0]]
    return {
        "ln_gamma": [listed(row) for row in gamma],
        "incomplete_beta": [listed(row) for row in beta],
        "normal_above": [listed(row) for row in normal],
    }


def student():
    p = [0.5, 0.6, 0.75, 0.9, 0.95, 0.975, 0.9825, 0.99, 0.995, 0.999, 0.9995]
    above = [
        (t, df, stats.t.sf(t, df))
        for t in [0.1, 0.7, 1.5, 2.8, 6.0, 40.0]
        for df in [1, 2.5, 4, 7.31, 19, 60.5, 199, 1000, 12345.6]
    ]
    quantiles = [listed(stats.t.ppf(p, df)) for df in range(1, 201)]
    return {"p": p, "quantiles": quantiles, "above": [listed(row) for row in above]}


def intervals():
    samples = [random.normal(0.01, 0.02, 5), random.lognormal(0, 1, 8), random.standard_t(3, 20), [3.0, 3.5, 2.5]]
    cases = []
    for values in samples:
        test = stats.ttest_1samp(values, 0)
        low, high = test.confidence_interval(0.95)
        cases.append({"values": listed(values), "low": float(low), "high": float(high), "p": float(test.pvalue)})
    return cases


def bootstraps():
    """scipy's percentile interval at the confidence of Hesterberg's expansion."""
    cases = []
    for values in [random.normal(0, 1, 20), random.lognormal(0, 1, 20), random.standard_t(3, 40)]:
        n = len(values)
        tail = stats.norm.sf(stats.t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1)))
        found = stats.bootstrap(
            (values,), np.mean, n_resamples=1_000_000, batch=10_000, method="percentile",
            confidence_level=1 - 2 * tail, rng=random,
        ).confidence_interval
        cases.append({"values": listed(values), "low": float(found.low), "high": float(found.high)})
    return cases


def floors():
    samples = [random.normal(0, 0.02, n) for n in (1, 5, 20, 200)]
    return [{"log_ratios": listed(x), "floor": float(np.percentile(np.abs(x), 95))} for x in samples]


def welch():
    pairs = [
        (random.normal(0, 1, 5), random.normal(0.5, 3, 5)),
        (random.normal(0, 1, 20), random.normal(1, 0.1, 8)),
        (random.normal(5, 1, 3), random.normal(0, 1, 30)),
        (random.lognormal(0, 1, 12), random.lognormal(0, 1, 12)),
    ]
    cases = []
    for a, b in pairs:
        test = stats.ttest_ind(a, b, equal_var=False)
        low, high = test.confidence_interval(0.95)
        expected = {"p": float(test.pvalue), "low": float(low), "high": float(high)}
        cases.append({"a": listed(a), "b": listed(b), **expected})
    return cases


def mann_whitney():
    cases = []

    def case(method, a, b):
        p = stats.mannwhitneyu(a, b, alternative="two-sided", method=method).pvalue
        cases.append({"method": method, "a": listed(a), "b": listed(b), "p": float(p)})

    for m, n, shift in [(5, 5, 0), (5, 5, 9), (3, 12, 0.5), (20, 20, 0.6), (25, 25, 0.2), (1, 1, 0)]:
        case("exact", random.normal(0, 1, m), random.normal(shift, 1, n))
    for m, n, shift in [(26, 25, 0.3), (40, 60, 0), (100, 30, 1)]:
        case("asymptotic", random.normal(0, 1, m), random.normal(shift, 1, n))
    for m, n, shift in [(5, 5, 0), (8, 12, 1), (40, 40, 0.4)]:
        case("asymptotic", np.round(random.normal(0, 1, m)), np.round(random.normal(shift, 1, n)))
    return cases


def holm():
    lists = [[0.01, 0.04, 0.03, 0.005], [0.2], listed(random.uniform(0, 0.1, 15)), [0.05, 0.05, 0.9, 1.0, 0.0]]
    return [{"p": p, "adjusted": listed(multipletests(p, method="holm")[1])} for p in lists]


def geometric_means():
    samples = [[2.0, 8.0], [4.0], listed(random.lognormal(0, 2, 30))]
    return [{"values": values, "mean": float(stats.gmean(values))} for values in samples]


def summaries():
    """numpy's summaries over all values, including the median of an even number of values."""
    samples = [random.lognormal(3, 0.5, 7), random.lognormal(3, 0.5, 150), [4.0, 1.0], [2.5], random.integers(0, 9, 40)]
    cases = []
    for values in samples:
        percentiles = dict(zip(["p50", "p90", "p95", "p99"], listed(np.percentile(values, [50, 90, 95, 99]))))
        order_statistics = {"min": float(np.min(values)), "max": float(np.max(values)), "median": float(np.median(values))}
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        cases.append({"values": listed(values), "mean": float(np.mean(values)), "std": std, **order_statistics, **percentiles})
    return cases


def outliers():
    """Flags of Iglewicz and Hoaglin, by scipy's median absolute deviation."""
    samples = [random.normal(10, 1, 30), random.lognormal(0, 1, 60), [1.0, 1.1, 0.9, 1.05, 5.0], random.standard_t(1, 200)]
    cases = []
    for values in samples:
        values = np.asarray(values)
        score = 0.6745 * np.abs(values - np.median(values)) / stats.median_abs_deviation(values)
        cases.append({"values": listed(values), "flagged": [int(index) for index in np.flatnonzero(score > 3.5)]})
    return cases


def paired_ratios():
    """Rounds of two configurations by block: one log ratio for each block, and the interval over blocks."""
    cases = []
    for blocks, rounds in [(5, 3), (8, 5), (3, 4)]:
        numerator, denominator = random.lognormal(1, 0.3, (2, blocks, rounds))
        log_ratios = np.median(np.log(numerator / denominator), axis=1)
        low, high = stats.ttest_1samp(log_ratios, 0).confidence_interval(0.95)
        sides = {"numerator": [listed(x) for x in numerator], "denominator": [listed(x) for x in denominator]}
        cases.append({**sides, "blocks": listed(log_ratios), "low": float(low), "high": float(high)})
    return cases


def slopes():
    """Theil's slope with Sen's interval, also of equal values."""
    samples = [random.normal(0, 1, 6), 0.3 * np.arange(12) + random.normal(0, 1, 12), random.integers(0, 3, 12), [2.0] * 8]
    cases = []
    for values in samples:
        times = np.cumsum(random.uniform(0.5, 1.5, len(values)))
        slope, _, low, high = stats.theilslopes(values, times, 0.95)
        cases.append({"times": listed(times), "values": listed(values), "slope": float(slope), "low": float(low), "high": float(high)})
    return cases


# Add new functions at the end: most draw from the same generator, so their order decides the values.
CASES = [special_functions, student, intervals, bootstraps, floors, welch, mann_whitney, holm, geometric_means]
CASES += [summaries, outliers, paired_ratios, slopes]
golden = {function.__name__: function() for function in CASES}
# One case on each line keeps the file readable and its changes small.
parts = []
for name, part in golden.items():
    rows = part.items() if isinstance(part, dict) else enumerate(part)
    lines = [(f'"{key}": ' if isinstance(part, dict) else "") + json.dumps(row) for key, row in rows]
    opening, closing = "{}" if isinstance(part, dict) else "[]"
    parts.append(f'"{name}": {opening}\n' + ",\n".join(lines) + f"\n{closing}")
Path(__file__).with_name("golden.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
