"""Print the number of guesses that an audit of epsilon needs, and its false alarms for a correct mechanism.

python benchmarks/epsilon_audit.py
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from scipy.special import expit

from flower_vfl.metrics import audit_power, coin_bound, guesses_needed, odds_bound

EPSILONS = (0.5, 1.0, 2.0, 4.0)


def needed(epsilon: float, beta: float) -> dict[str, int | None]:
    """Return the guesses that refute a claim which is half of, or a quarter below, a true epsilon."""
    return {
        "half of it": guesses_needed(epsilon, epsilon / 2, beta=beta),
        "0.25 below": guesses_needed(epsilon, epsilon - 0.25, beta=beta),
        "all right": next(count for count in range(1, 10_000) if coin_bound(count, count, beta=beta) >= epsilon),
    }


def exceeded(epsilon: float, runs: int, rows: int, generator: np.random.Generator) -> dict[str, int]:
    """Return the number of simulated audits of randomised response in which the bound exceeds the true epsilon."""
    priors = generator.choice([0.05, 0.2, 0.5, 0.7, 0.9], size=(runs, rows))
    labels = generator.random(priors.shape) < priors
    sent = labels ^ (generator.random(labels.shape) < expit(-epsilon))
    odds = odds_bound((sent == labels).sum(axis=1), np.where(sent, priors, 1 - priors))
    coins = coin_bound(generator.binomial(rows, expit(epsilon), size=runs), rows)
    return {"coins": int((coins > epsilon).sum()), "known odds": int((odds > epsilon).sum())}


def main() -> None:
    """Print two tables in Markdown, and one line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beta", type=float, default=0.05)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=400)
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    found = {str(epsilon): needed(epsilon, given.beta) for epsilon in EPSILONS}
    wrong = {str(epsilon): exceeded(epsilon, given.runs, given.rows, generator) for epsilon in EPSILONS}
    alarms = {str(epsilon): float(audit_power(epsilon, epsilon, given.rows, beta=given.beta)) for epsilon in EPSILONS}
    print("| true epsilon | a claim of half of it | a claim 0.25 below | all guesses right |")
    print("|---|---|---|---|")
    for epsilon, row in found.items():
        print(f"| {epsilon} | {' | '.join(str(count) for count in row.values())} |")
    print()
    print(f"| epsilon | bounds above it, of {given.runs}: coins | known odds | expected by the formula |")
    print("|---|---|---|---|")
    for epsilon, row in wrong.items():
        print(
            f"| {epsilon} | {' | '.join(str(count) for count in row.values())} | {given.runs * alarms[epsilon]:.0f} |"
        )
    print(json.dumps({"guesses": found, "exceeded": wrong, "false_alarms": alarms}))


if __name__ == "__main__":
    main()
