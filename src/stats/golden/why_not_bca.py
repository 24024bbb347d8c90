# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "scipy==1.17.1"]
# ///
"""Prints how often intervals of 95 % for the mean of 20 and of 40 blocks contain the truth. The results are the reason why
verdicts use t, and why `interval.rs` has an expanded percentile interval instead of BCa.

    uv run src/stats/golden/why_not_bca.py
"""

import numpy as np
from scipy import stats

EXPERIMENTS, RESAMPLES = 4000, 1000
random = np.random.default_rng(2)


def slow_blocks(n):
    """Normal noise of log ratios; in one block of ten, one of the two engines has 0.44 of its speed, as in `tests/noise.rs`."""
    slow = np.where(random.random(n) < 0.5, 1, -1) * np.log(0.44)
    return random.normal(0, 0.01, n) + np.where(random.random(n) < 0.1, slow, 0)


# By name: a function that draws the values of n blocks, and their true mean.
NOISES = {
    "normal": (lambda n: random.normal(size=n), 0.0),
    "t with 3 df": (lambda n: random.standard_t(3, n), 0.0),
    "log-normal 0.5": (lambda n: random.lognormal(0, 0.5, n), np.exp(0.125)),
    "log-normal 1": (lambda n: random.lognormal(0, 1, n), np.exp(0.5)),
    "slow blocks": (slow_blocks, 0.0),
}


def intervals(x):
    n, mean, error = len(x), x.mean(), x.std(ddof=1) / np.sqrt(len(x))
    t = stats.t.ppf(0.975, n - 1)
    drawn = x[random.integers(0, n, (RESAMPLES, n))]
    means = drawn.mean(1)
    tail = stats.norm.sf(t * np.sqrt(n / (n - 1)))
    z0 = stats.norm.ppf(np.clip((means < mean).mean(), 0.001, 0.999))
    left_out = mean - (x.sum() - x) / (n - 1)
    acceleration = (left_out**3).sum() / (6 * (left_out**2).sum() ** 1.5)
    z = z0 + stats.norm.ppf([0.025, 0.975])
    bca = stats.norm.cdf(z0 + z / (1 - acceleration * z))
    errors = np.maximum(drawn.std(1, ddof=1) / np.sqrt(n), 1e-12)
    above, below = np.quantile((means - mean) / errors, [0.975, 0.025])
    return {
        "t": (mean - t * error, mean + t * error),
        "percentile": np.quantile(means, [0.025, 0.975]),
        "expanded": np.quantile(means, [tail, 1 - tail]),
        "BCa": np.quantile(means, bca),
        "bootstrap-t": (mean - above * error, mean - below * error),
    }


for n in (20, 40):
    for name, (draw, true_mean) in NOISES.items():
        covered = {}
        for _ in range(EXPERIMENTS):
            for method, (low, high) in intervals(draw(n)).items():
                covered[method] = covered.get(method, 0) + (low <= true_mean <= high)
        shares = "  ".join(f"{method} {100 * count / EXPERIMENTS:.1f}" for method, count in covered.items())
        print(f"{n} blocks, {name:<20} {shares}", flush=True)
