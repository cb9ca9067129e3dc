"""The results of a run: the keys of `result.json` and the columns of `steps.parquet`.

Types, and which keys must be there, come from the code that reads them. What a key means is written here, and a test
runs a training and fails for each key without a description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flower_vfl.apps.result_schema import OPTIONAL, SECTIONS
from flower_vfl.tracking import SCHEMA

KEYS: Mapping[str, str] = {
    "schema": "Version of this format: 1.",
    "status": "How the run ended: finished, early stopping, leak limit, bound limit, interrupted or failed.",
    "error": "What ended it; empty where nothing did.",
    "dataset": "The training data.",
    "dataset.name": "Name of the data set.",
    "dataset.rows": "Training rows, validation included.",
    "dataset.validation_rows": "Training rows that are for validation alone.",
    "dataset.test_rows": "Test rows.",
    "dataset.positives": "Share of positives among the training rows; null for more than two classes.",
    "dataset.classes": "Number of classes.",
    "dataset.class_rows": "Training rows of each class.",
    "parties": "Who took part.",
    "parties.features": "Names of the feature parties.",
    "parties.label_features": "Whether the label party used columns of its own.",
    "defenses": "The defenses, outermost first; empty for none.",
    "defenses[].name": "Name of the defense.",
    "defenses[].params.*": "Its parameters.",
    "defenses[].read_by": "Attacks that are known to read labels in spite of it.",
    "defenses[].class": "Where a defense that is not built in comes from, as `module:Class`.",
    "baseline": "`no_gradients` where nothing that depends on labels left the label party; missing in other runs.",
    "defenses[].proven.*": "What it proves of all that leaves: epsilon and, above 0, delta of each label; the AUC that "
    "these allow. Missing where it proves nothing.",
    "log.*": "Means over all steps of what the defenses log, such as `marvell.noise_power`.",
    "attacks": "The attacks that ran.",
    "attacks[].attack": "Name of the attack.",
    "attacks[].label": "Name and parameters, as tables show it.",
    "attacks[].needs": "The side information that it has.",
    "attacks[].hints": "How many known positives of a batch it has.",
    "attacks[].left_out": "How many rows of a batch are not scored, because they supplied side information.",
    "attacks[].sees": "`gradients` or `embeddings`.",
    "model": "The model that the run kept, which `predict` uses.",
    "model.step": "Steps after which it was kept.",
    "model.epoch": "Epoch of that step.",
    "model.chosen_by": "The metric that chose it; missing where the last model was kept.",
    "model.refit.passes": "Passes of `training.refit`; missing without any.",
    "model.refit.kept": "The pass whose weights stay; 0: those from before. `utility` has the metrics of these.",
    "model.refit.validation": "The metric that compares passes, before the first and after each; null where none is.",
    "budget": "Limits on the leak, where the configuration has some.",
    "budget.*.limit": "The limit `max_leak` or `max_bound`.",
    "budget.*.reached": "What was reached after each epoch.",
    "account": "What the label party's privacy ledger has after the run; missing without a ledger.",
    "account.epsilon": "Epsilon of each label, of all trainings on the ledger together.",
    "account.delta": "The delta of epsilon and limit.",
    "account.limit": "The owner's limit.",
    "account.trainings": "Trainings that have spent something.",
    "utility": "Metrics of the model after the `last` epoch, and after the `best` one by validation. With "
    "`training.refit`, the epoch whose model stays has those after it.",
    "utility.*.epoch": "The epoch.",
    "utility.*.test_auc": "AUC on the test rows; null for more than two classes.",
    "utility.*.test_loss": "Cross-entropy on the test rows.",
    "utility.*.test_ace": "Adaptive calibration error on the test rows.",
    "utility.*.test_accuracy": "Accuracy on the test rows.",
    "utility.*.test_balanced_accuracy": "Mean over the classes of the accuracy on the test rows.",
    "utility.*.test_macro_auc": "Mean over the classes of one-against-the-rest AUCs; for more than two classes.",
    "utility.*.train_loss": "Mean loss of the epoch's steps.",
    "utility.*.validation_*": "The same metrics on the validation rows.",
    "best_by": "The metric that makes an epoch the best one.",
    "classes": "How well the kept model predicts each class of the test rows, in the order of the class numbers. It "
    "has only `names` where no model was evaluated.",
    "classes.names": "Names of the classes, as the data have them.",
    "classes.rows": "Test rows of each class.",
    "classes.recall": "Share of a class's test rows that the model recognises; null without rows. Of two classes the "
    "likelier one is predicted.",
    "classes.precision": "Share of the test rows predicted as a class that belong to it; null where none is.",
    "classes.confusion": "Test rows by true class (outer list) and predicted class (inner list); missing for more than "
    "100 classes.",
    "periods.*": "For training in time order: number of days, first and last one, and means over the days.",
    "leakage": "One entry for each attack, party, layer and view of the messages.",
    "leakage[].attack": "Name of the attack; `informed` is the informed reader.",
    "leakage[].label": "Name and parameters, as tables show it.",
    "leakage[].params.*": "Its parameters.",
    "leakage[].metric": "`auc`, or `accuracy` for more than two classes and for clusters.",
    "leakage[].phase": "`train`: single steps; `remembered`: all epochs; `inference`: the trained model; `joint`: with "
    "own columns; `audit`: the informed reader.",
    "leakage[].source": "`attacker`: a feature party, scored in a simulation; `monitor`: the label party.",
    "leakage[].defended": "Whether this is what was sent. `false`: the same gradients before the defense.",
    "leakage[].layer": "Layer that the attack reads: `cut`, `first` or another layer of the bottom model.",
    "leakage[].party": "Who reads; `a+b` for parties that collude.",
    "leakage[].sees": "What the reader has: gradients, columns, embeddings.",
    "leakage[].q95": "The leak AUC that 5 % of the steps exceed; null where there is one value only.",
    "leakage[].q95_null": "What random scores reach in the same measure.",
    "leakage[].q95_turned": "The same with all scores negated: an attack that is wrong reads as much.",
    "leakage[].q95_p_value": "How likely a random score reaches the larger of `q95` and `q95_turned`, on "
    "either side, in these very batches (`flower_vfl.metrics.quantile_p_value`); of AUCs of single steps alone.",
    "leakage[].max_p_value": "How likely a random score reads any of the scored steps as well as the best read one was "
    "read, on either side (`flower_vfl.metrics.step_p_values`); of AUCs of single steps alone.",
    "leakage[].steps_read": "Steps that are read: those for which this probability is at most 5 %.",
    "leakage[].steps_read_max": "Largest leak AUC of these, with scores negated where it is below 0.5; null for none.",
    "leakage[].mean": "Mean leak AUC, or the only one.",
    "leakage[].max": "Largest leak AUC of a step.",
    "leakage[].detection_error_mean": "Mean detection error: the smallest mean of both error rates.",
    "leakage[].detection_error_q05": "The detection error that 5 % of the steps fall below.",
    "leakage[].steps": "Scored steps.",
    "leakage[].one_class_steps": "Steps with one class only, which have no AUC.",
    "leakage[].epochs": "Epochs after which a longitudinal attack was scored.",
    "leakage[].values": "The leak AUC after each of these epochs.",
    "leakage[].interval95": "95 % interval of the AUC.",
    "leakage[].p_value": "One-sided p-value of the AUC against guessing, of the accuracy of groups in single steps "
    "against that of the same groups in random order; of longitudinal attacks that of the AUCs of "
    "all epochs, on either side.",
    "leakage[].rows": "Rows that were scored.",
    "leakage[].positives": "Positives among them.",
    "leakage[].rows_of": "`train` or `test`.",
    "leakage[].turned": "`true` where the scores of a joint attack were on the wrong side, and were negated.",
    "leakage[].known": "Rows whose labels the reader was fitted to.",
    "leakage[].baseline": "What the same kind of reader reaches without the gradients, or without the trained model.",
    "leakage[].baseline_reader": "Kind of the best reader without the gradients.",
    "leakage[].baselines.*": "That number for each thing that a reader can have instead.",
    "leakage[].advantage": "AUC above the baseline: the gain.",
    "leakage[].advantage_interval95": "95 % interval of the gain.",
    "leakage[].advantage_p_value": "One-sided p-value of the gain against 0.",
    "leakage[].chance": "What guessing reaches in this metric.",
    "leakage[].perfect_protection": "What a perfect defense would leave to this attack.",
    "leakage[].measures.*": "Further metrics of an attack on the trained model, each with its own numbers.",
    "leakage[].reader": "Kind of the informed reader, see decision 24: linear, trees, network, context or another.",
    "leakage[].span": "What it reads at once: a `batch`, an `epoch` or all `epochs`.",
    "leakage[].positive_class": "The class that the attack detects.",
    "leakage[].candidates[].*": "The informed readers that were tried on validation rows, best first.",
    "leakage[].class": "The class that `remembered_direction` reads most clearly; for more than two classes.",
    "leakage[].classes": "Number of classes with which its scores were compared.",
    "leakage[].member": "The member of a group whose numbers alone the best reader uses.",
    "leakage[].unavailable": "Why there is no number.",
    "leakage[].unread": "Why some of the classes have no reader.",
    "leakage[].by_class[].*": "The same measures for each class (`class`); for more than two classes.",
    "leakage[].worst_class.*": "The same measures for the class that leaks most; for more than two classes.",
    "leakage[].macro_*": "Means over the classes; for more than two classes.",
    "epsilon": "What was measured of epsilon: bounds from below. Missing without informed readers.",
    "epsilon.kind": "`canaries`: guesses of coins, it holds whatever the data are; `estimated`: it is as good as the "
    "odds of labels, which a model gave.",
    "epsilon.lower": "The largest bound of a party or group: epsilon is at least this; null for none.",
    "epsilon.party": "Whose bound it is.",
    "epsilon.confidence": "Confidence of all bounds together.",
    "epsilon.delta": "The delta of the claim that they are about.",
    "epsilon.canaries": "Labels that were coins.",
    "epsilon.parties[].party": "Who reads; `a+b` for parties that collude.",
    "epsilon.parties[].lower": "The bound of this party; null with a reason in `unavailable`.",
    "epsilon.parties[].guesses": "Labels that were guessed for this bound.",
    "epsilon.parties[].right": "Guesses that were right.",
    "epsilon.parties[].named": "Guesses of a class, not of all others together; canaries of more than two classes.",
    "epsilon.parties[].expected": "Right guesses by the estimated odds; without canaries.",
    "epsilon.parties[].tried[].*": "The same for each number of guesses that was tried.",
    "epsilon.parties[].reader": "Kind of the informed reader that guesses.",
    "epsilon.parties[].span": "What it reads at once: all `epochs`.",
    "epsilon.parties[].positive_class": "The class that it tells from all others.",
    "epsilon.parties[].member": "Of colluding parties the one whose numbers alone it reads; missing for all.",
    "epsilon.parties[].eta": "What readers without gradients get beyond the estimated odds; it is taken off.",
    "epsilon.parties[].odds_by": "Kind of the model that gave the odds.",
    "epsilon.parties[].unavailable": "Why there is no bound; empty where there is one.",
    "rebuild": "How many leaked labels rebuild the federation's model.",
    "rebuild[].party": "Who completes its bottom model.",
    "rebuild[].layer": "The layer that is completed.",
    "rebuild[].attack": "The attack that completes it.",
    "rebuild[].params.*": "Its parameters.",
    "rebuild[].metric": "The metric that counts.",
    "rebuild[].share": "`attack.rebuilt`: the share of the way from chance to the federation's model.",
    "rebuild[].federation": "The federation's own metric.",
    "rebuild[].chance": "What guessing reaches.",
    "rebuild[].target": "The metric that counts as rebuilt.",
    "rebuild[].k": "Fewest leaked labels a class that reach it; null where none does.",
    "rebuild[].labels": "These labels in all.",
    "rebuild[].alone_k": "The same from scratch, without the trained bottom model.",
    "rebuild[].alone_labels": "These labels in all.",
    "rebuild[].tried": "The most labels a class that were tried.",
    "rebuild[].curve[].*": "The metric for each number of labels, with intervals and with the baseline from scratch.",
    "cost": "What the training cost.",
    "cost.steps": "Steps.",
    "cost.in_flight": "Steps under way at once.",
    "cost.seconds": "Seconds of the training.",
    "cost.bytes_up": "Bytes of frames from the feature parties.",
    "cost.bytes_down": "Bytes of frames to the feature parties.",
    "cost.seconds_compute": "Seconds in which the label party computed.",
    "cost.seconds_wait": "Seconds in which it waited for others.",
    "cost.together": "Runs that were trained together in a stack, this one included.",
    "worth": "The comparison with scikit-learn on the same test rows; missing without it.",
    "worth.measure": "What is compared: `test_auc`, or `test_accuracy` for more than two classes.",
    "worth.together": "What the federation reaches.",
    "worth.test_rows": "Test rows.",
    "worth.margin": "Half of the 95 % interval by the number of test rows: smaller differences may be chance.",
    "worth.baselines[].model": "Gradient boosting or logistic regression.",
    "worth.baselines[].columns": "The party whose columns it has; `all` for the joined table.",
    "worth.baselines[].value": "What it reaches.",
    "weights": "SHA-256 of each party's final weights.",
    "weights.*": "SHA-256 of one party's final weights.",
    "environment": "The software, and what the result depends on beside the configuration.",
    "environment.flower_vfl": "Version of flower-vfl.",
    "environment.build": "SHA-256 of its source files.",
    "environment.flwr": "Version of Flower.",
    "environment.torch": "Version of PyTorch.",
    "environment.python": "Version of Python.",
    "environment.seed": "The seed.",
    "environment.transport": "The transport.",
    "environment.device": "The device.",
    "environment.threads": "Threads of each party.",
    "environment.instructions": "Vector instructions of the label party's processor: others round otherwise.",
    "environment.hosts.*": "The software of each feature party's host.",
    "verdict": "The headline of the report.",
    "verdict.status": "`leaks`, `not tested`, `no leak found`, or `proven` where a defense proves an epsilon.",
    "verdict.refuted": "Where something is proven: whether a measured lower bound exceeds it.",
    "verdict.level": "Total rate of false alarms.",
    "verdict.tests": "How many tests share that rate.",
    "verdict.parties[].*": "The verdict for each party and each group: its leak, its gain, and what did not run. "
    "`leak.single_steps` has single steps that are read and that the leak's `value`, a quantile, does not show; null "
    "for none; `groups` has the attack whose groups match the labels, null for none.",
    "alone.*": "With `--alone`: the test metric that each party reaches with its own columns.",
    "alone_better.*": "Where a party alone does better than all together: who, by what, and both numbers.",
}
"""The meaning of each key. `[]` is each entry of a list, `*` any name from there on."""

COLUMNS: Mapping[str, str] = {
    "step": "The step, from 0; of an epoch's values its last step, of the trained model's the number of steps.",
    "epoch": "The epoch, from 1.",
    "party": "The feature party that reads, `a+b` for parties that collude; `label` for the label party's values.",
    "layer": "The layer that an attack reads; empty for other values.",
    "attack": "The attack with its parameters; empty for other values.",
    "metric": "What the value is.",
    "value": "The value.",
}

METRICS: Mapping[str, str] = {
    "auc": "Leak AUC of a step, scored for the attacker with true labels.",
    "detection_error": "Detection error of a step.",
    "monitor_*": "The same from the label party's monitor.",
    "undefended_*": "The same for the gradients before the defense; nobody received them.",
    "remembered_*": "A longitudinal attack after an epoch.",
    "inference_*": "An attack on the trained model.",
    "baseline_*": "The same attack without the trained model.",
    "train_loss": "Loss of a step.",
    "batch_rows": "Rows of a step.",
    "batch_positives": "Positives of a step; for two classes.",
    "epoch_train_loss": "Mean loss of an epoch.",
    "epoch_leak": "The monitor's worst leak AUC of an epoch, which `attack.max_leak` limits.",
    "test_*": "Utility on the test rows after an epoch.",
    "validation_*": "Utility on the validation rows after an epoch.",
    "next_*": "In time order: utility on the following day.",
    "*.*": "What a defense logs, such as `marvell.noise_power`.",
}
"""The meaning of each metric; `*` is any text."""


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """Return the keys of a result, `[]` for each entry of a list; each once or more."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from keys_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from keys_of(inner, f"{path}[]")
    else:
        yield path


def result_json() -> str:
    """Return all keys, one table each top-level key."""
    lines: list[str] = []
    top = ""
    kinds = {dict: "object", list: "list"}
    for key, what in KEYS.items():
        here = key.replace("[]", ".").partition(".")[0]
        if here != top:
            top = here
            kind = kinds.get({**SECTIONS, **OPTIONAL}.get(top, str), "value")
            needed = "in every result" if top in SECTIONS else "may be missing"
            lines += ["", f"## {top}", "", f"A {kind}, {needed}." if kind != "object" else f"An object, {needed}."]
            lines += ["", "| key | meaning |", "|---|---|"]
        lines.append(f"| `{key}` | {what} |")
    return "\n".join(lines)


def steps_parquet() -> str:
    """Return the columns with their types, and the metrics."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{field.name}` | {field.type} | {COLUMNS[field.name]} |" for field in SCHEMA]
    lines += ["", "## Metrics", "", "| metric | meaning |", "|---|---|"]
    lines += [f"| `{metric}` | {what} |" for metric, what in METRICS.items()]
    return "\n".join(lines)
