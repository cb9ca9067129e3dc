"""Advice in a report: what to do next, by the verdict of a run."""

from __future__ import annotations

from flower_vfl.auditing.entries import Result, phase_of, sends_nothing
from flower_vfl.auditing.verdict import FEWEST_STEPS, LEAKS, NO_LEAK
from flower_vfl.config.schema import AttackConfig
from flower_vfl.reports.headline import Headline
from flower_vfl.reports.proof import RECOMMENDED_CANARIES, Epsilon
from flower_vfl.reports.words import defenses, listed

RECOMMENDED = "local_head(epsilon=1)"
"""The defense that docs/results/proof.md recommends."""


def advice(result: Result, headline: Headline) -> list[str]:
    """Return the next steps that follow from the verdict, in sentences, the most important first."""
    steps: list[str] = []
    if sends_nothing(result):
        return [
            "Compare this run with one that sends gradients (training.gradients = true) behind a defense: a defense "
            f"with a lower {_utility(result)} than this run should not be used.",
            "Say who gets predictions and metrics of this model: they depend on labels, and no report covers them.",
        ]
    if result.get("status", "finished") in ("failed", "interrupted"):
        steps.append("Let the run end before you rely on its numbers: they are of a part of the training.")
    if headline.epsilon is not None and headline.epsilon.proof is not None:
        steps += _after_proof(headline.epsilon, _utility(result))
    elif headline.status == LEAKS:
        steps.append("Do not hand gradients of this training to a party that must not learn the labels.")
        steps += _other_training(result, headline)
    if headline.missing:
        steps += _after_gaps(headline)
    if headline.open:
        steps.append(
            "Run it again with two other seeds, and compare the runs with flower-vfl report. Of many intervals one "
            "lies above guessing by chance; the interval of a leak lies there each time."
        )
    if headline.status == NO_LEAK:
        steps.append("Keep this report with the model, and name its date and its version where you refer to it.")
        steps.append(
            "Measure again whenever the data, the model, the defense or the number of epochs change: this is a finding "
            "of one run, not a property of the defense."
        )
    if not any(phase_of(entry) == "inference" and entry.get("metric") for entry in result["leakage"]):
        steps.append(
            "Before a party keeps its model, also measure what the trained model reveals about labels: name "
            "clustering, embedding_reader and model_completion in attack.names of a simulation."
        )
    return steps


def _other_training(result: Result, headline: Headline) -> list[str]:
    """Return the changes for another training: another defense, or other settings of the same one."""
    settings = "without training.patience"
    if "periods" not in result:  # in time order each row is trained on once
        settings = f"with training.pretrain = 6 and {settings}"
    best = f'The evidence recommends {RECOMMENDED}, which has a proof: defenses = ["{RECOMMENDED}"], {settings}.'
    if not result["defenses"]:
        compared = "Compare both runs: flower-vfl report with both folders shows what the defense costs."
        return [f"Train again with a defense. {best}", compared]
    other, worst = f"Train again with another defense, and compare. {best}", headline.worst
    if worst is not None and not worst.verdict["leak"]["leaks"]:
        people = "noise averages out over people whose columns are similar."
        return [other, f"Or train fewer epochs or with a stronger defense, and measure again: {people}"]
    practical = worst.verdict["leak"]["practical"] if worst is not None else None
    if practical is not None and str(practical["label"]).startswith("remembered") and "periods" not in result:
        return [
            other,
            "Or let a part of the noise stay with each person (rho, docs/methods/persistent-noise.md), or train fewer "
            "epochs: fresh noise averages out over the epochs of a person.",
        ]
    isotropic = any(defense["name"] == "marvell" for defense in result["defenses"])
    if isotropic and practical is not None and practical["label"] == "residual":
        return [
            other,
            "Or use marvell_full, which hides from residual with the same power of noise. A stronger marvell does not "
            "help: residual reads it at every strength (docs/results/gradients.md).",
        ]
    stronger = f"Or make {defenses(result)} stronger, which costs {_utility(result)}: sweep its strength and compare."
    return [other, stronger]


def _utility(result: Result) -> str:
    """Return the measure of utility in words."""
    return "test AUC" if result["dataset"].get("classes") in (2, None) else "test accuracy"


def _after_proof(epsilon: Epsilon, utility: str) -> list[str]:
    """Return the steps after a proof; `utility` is the measure of what it costs."""
    if epsilon.refuted:
        return [
            "Do not rely on the proof, and hand out no gradients of this training: something that leaves the label "
            "party depends on labels in a way that the proof does not cover. Keep the run's folder, and report it.",
        ]
    steps = [
        "Decide whether this epsilon is small enough: it bounds what the messages add about a person, not what the "
        f"party's own columns tell. A smaller epsilon reveals less; the {utility} shows what it costs.",
        "Count the trainings: each further one on the same labels with a new secret adds its epsilon.",
    ]
    if epsilon.found is None or not epsilon.found.proven:
        steps.append(
            f"Test the proof in a trial run: attack.canaries = {RECOMMENDED_CANARIES} replaces this number of labels "
            "by random ones. This finds mistakes of a mechanism; the final run needs no canaries."
        )
    return steps


def _after_gaps(headline: Headline) -> list[str]:
    """Return the steps that make the missing attacks and readers run."""
    names = [reason.partition(":")[0] for reason in headline.missing if "informed" not in reason]
    silent = [reason for reason in headline.missing if "did not run" in reason]
    attacks = list(dict.fromkeys(name for name in names if any(reason.startswith(f"{name}:") for reason in silent)))
    steps = []
    if attacks:
        steps.append(f"Run what is missing: add {listed(attacks)} to attack.names, or leave attack.names out.")
    if any("informed" in reason for reason in silent):
        steps.append(
            f"Let the informed readers run: attack.informed = {AttackConfig().informed}, with attack.monitor = true."
        )
    if any("steps were scored" in reason for reason in headline.missing):
        steps.append(f"Score more steps: at least {FEWEST_STEPS} are needed. Train longer, or lower attack.every.")
    others = len(headline.missing) > len(silent) and not any("steps were scored" in r for r in headline.missing)
    return [*steps, "For the others, the list of what did not run has the reasons."] if others else steps
