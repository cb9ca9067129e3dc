"""The ServerApp: its results and its logs, and its use in Flower's simulation runtime."""

import gc
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from flower_vfl.apps import make_server_app, run
from flower_vfl.apps.factories import default_bottom
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.result_schema import OWN_DATA
from flower_vfl.errors import ConfigError
from flower_vfl.tracking import read_steps
from tests.toys import toy_config, toy_data

FORKING = """
import os, subprocess, threading, time
from concurrent import futures
import grpc

def serve():
    while True:
        endpoint = grpc.server(futures.ThreadPoolExecutor(4))
        port = endpoint.add_insecure_port("127.0.0.1:0")
        endpoint.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                channel.unary_unary("/x/y")(b"", timeout=0.2)
            except grpc.RpcError:
                pass
        endpoint.stop(0)

threading.Thread(target=serve, daemon=True).start()
end = time.monotonic() + 5
codes = set()
while time.monotonic() < end:
    codes.add(subprocess.Popen(["true"], preexec_fn=lambda: None).wait())
os.write(1, repr(codes).encode())
os._exit(0)
"""


@pytest.mark.slow
def test_no_process_dies_in_a_fork_where_grpc_has_no_fork_handlers(monkeypatch):
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{0}"


def test_the_result_has_the_means_of_the_values_that_defenses_logged(tmp_path):
    data, config = toy_data(rows=200), toy_config(defenses=[{"name": "marvell", "s": 1.0}], training={"batch_size": 2})
    result = run(config, data=lambda _: data, out=tmp_path / "run").summary
    assert 0 < result["log"]["marvell.fallback"] < 1
    steps = read_steps(tmp_path / "run").to_pandas()
    for name in ("marvell.fallback", "marvell.noise_power", "marvell.auc_bound"):
        assert result["log"][name] == pytest.approx(steps["value"][steps["metric"] == name].mean())


def test_a_feature_party_is_gone_with_its_run():
    """It does not wait for a garbage collection, until which its data would stay open."""
    made = weakref.WeakSet()

    def watched(spec, config):
        made.add(model := default_bottom(spec, config))
        return model

    run(toy_config(), data=lambda _: toy_data())  # torch keeps what the first optimizer of a process was made for
    gc.disable()
    try:
        run(toy_config(), data=lambda _: toy_data(), bottom=watched)
        assert not made
    finally:
        gc.enable()


@pytest.mark.slow
def test_so_few_steps_that_nothing_is_learned_are_a_warning_and_the_log_says_what_validation_takes(caplog):
    caplog.set_level("INFO")
    run(toy_config(training={"epochs": 2, "batch_size": 300}), data=lambda _: toy_data())
    assert "600 training rows, 60 of them for validation; at most 4 steps: 2 epochs of up to 300 rows" in caplog.text
    assert '4 steps are few: with training.batch_size at "auto", there are up to 68 (2 epochs' in caplog.text
    caplog.clear()
    run(toy_config(training={"epochs": 10, "batch_size": 20}), data=lambda _: toy_data())
    run(toy_config(training={"epochs": 1, "batch_size": 16}), data=lambda _: toy_data())  # the epochs are meant
    assert "are few" not in caplog.text
    run(toy_config(training={"epochs": 1, "batch_size": 16}), data=lambda _: replace(toy_data(), name="files"))
    assert '34 steps are few: with training.epochs and training.batch_size at "auto", there are up to' in caplog.text


def test_a_test_part_of_own_data_without_rows_of_a_class_is_a_warning(caplog):
    for test_rows in (40, 1):
        assert "rows of the test part" not in caplog.text
        data = replace(toy_data(test_rows=test_rows), name=OWN_DATA)
        run(toy_config(), data=lambda _, data=data: data)
    assert "rows of the test part: 1, of 1 of the 2 classes: no AUC is known for the others" in caplog.text


def test_a_run_to_resume_is_named_and_not_given_a_new_folder():
    run_config = {"preset": "census", "out": "auto", "resume": True}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    with pytest.raises(ConfigError, match="name it by out"):
        make_server_app()(LocalGrid(ClientApp(), 1, run_config), context)
