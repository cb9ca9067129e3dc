"""The page of a run under way: reading of the folder, content of the page, and access to it."""

import html
import http.client
import json
import os
import re
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from flower_vfl.apps.live import LIVE, LOG
from flower_vfl.errors import InputError, SetupError
from flower_vfl.metrics import null_quantile
from flower_vfl.reports.watching import WatchServer
from flower_vfl.reports.watching.follower import MOST_VALUES, Curve, Follower
from flower_vfl.reports.watching.view import RunPage
from flower_vfl.tracking import StepLog, merge_steps, read_steps
from flower_vfl.version import VERSION
from tests.browser import CHROMIUM

from .conftest import write_run

LOSS = ("label", "", "", "train_loss")


def log_steps(log, steps, party="a", attack="norm"):
    for step in steps:
        own = {"step": step, "epoch": 1, "party": "label", "layer": "", "attack": ""}
        log.add(**own, metric="train_loss", value=1.0 / (step + 1))
        log.add(**own, metric="batch_rows", value=64.0)
        log.add(**own, metric="batch_positives", value=16.0)
        log.add(step=step, epoch=1, party=party, layer="cut", attack=attack, metric="auc", value=0.9)
    log.flush()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text("")
    return path


def write_state(folder, step=5, **more):
    state = {"steps": 100, "epochs": 4, "epoch": 1, "step": step, "speed": 2.5}
    state |= {"stepped": time.time(), "written": time.time(), "parties": {"a": {"bytes_up": 2048, "reconnects": 3}}}
    (folder / LIVE).write_text(json.dumps(state | more))


@contextmanager
def served(folder):
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, name="", method="GET", path=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, f"/{server.token}/{name}" if path is None else path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_a_journal_is_read_as_it_grows_and_a_half_written_record_waits_for_its_rest(folder):
    follower = Follower(folder)
    log = StepLog(folder, name="label")
    log_steps(log, range(10))
    assert follower.read()
    assert not follower.read()
    before = (folder / "label.journal").read_bytes()
    log_steps(log, range(10, 15))
    whole = (folder / "label.journal").read_bytes()
    (folder / "label.journal").write_bytes(whole[:-7])
    follower.read()
    assert follower.curves[LOSS].steps.tolist() == list(range(10))
    (folder / "label.journal").write_bytes(whole)
    assert follower.read()
    table = read_steps(folder)  # what a report reads, from the beginning
    expected = [row["value"] for row in table.to_pylist() if row["metric"] == "train_loss"]
    assert follower.curves[LOSS].values.tolist() == expected
    assert len(expected) == 15
    (folder / "label.journal").write_bytes(before)  # another journal in its place: from the beginning again
    follower.read()
    assert follower.curves[LOSS].steps.tolist() == list(range(10))
    (folder / "label.journal").write_bytes(whole)
    merge_steps(folder)
    follower.read()
    assert follower.curves[LOSS].values.tolist() == expected


def test_a_log_that_cannot_be_read_is_reported_and_ends_nothing(folder):
    follower = Follower(folder)
    (folder / "steps.parquet").write_text("nothing of that kind")
    follower.read()
    assert "steps.parquet cannot be read" in follower.problem
    (folder / "steps.parquet").unlink()
    log_steps(StepLog(folder, name="label"), range(3))
    follower.read()
    assert follower.problem == ""
    assert follower.curves[LOSS].steps.size == 3


def test_a_long_curve_keeps_its_peaks_in_bounded_memory():
    curve = Curve()
    for step in range(5 * MOST_VALUES):
        curve.add(step, 1.0 if step == 70_001 else 0.5)
    assert curve.steps.size < 2 * MOST_VALUES
    assert curve.values.max() == 1.0
    assert abs(curve.steps[curve.values.argmax()] - 70_001) < 8
    assert curve.steps[-1] >= 5 * MOST_VALUES - 8


def test_the_page_shows_loss_leak_beside_guessing_speed_parties_and_log(folder):
    log_steps(StepLog(folder, name="label"), range(30))
    write_state(folder)
    (folder / LOG).write_text("10:00:00 INFO all parties have arrived: a\n")
    page = RunPage(Follower(folder)).page()
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.split("<body>")[1])).split())
    chance = null_quantile([(48, 16)] * 30, 0.975)
    for words in (
        "Step 5 of 100, epoch 1 of 4",
        "Loss of the last step 0.0333",
        f"0.900 The largest: norm, party a, cut layer . Guessing stays at or below {chance:.3f}".replace(" .", "."),
        "Steps a second 2.5 At most 38.0 s left",
        "a unknown 2.0 KiB – 3 –",
        "all parties have arrived: a",
    ):
        assert words in text
    assert page.count("<svg") == 2
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page


def test_the_largest_leak_is_no_oracles_and_counts_scores_that_are_turned_around(folder):
    log = StepLog(folder, name="label")
    for attack, value in (("norm", 0.6), ("residual(parts=2)", 0.2), ("cosine", 1.0)):
        log.add(step=1, epoch=1, party="a", layer="cut", attack=attack, metric="auc", value=value)
    log.flush()
    write_state(folder)
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", RunPage(Follower(folder)).page())).split())
    assert "0.800 The largest: residual(parts=2), party a, cut layer" in text


def test_what_a_folder_holds_is_text_and_never_markup(folder):
    evil = "<script>alert(1)</script>"
    log_steps(StepLog(folder, name="label"), range(30), party=evil, attack=evil)
    write_state(folder, parties={evil: {"bytes_up": evil, "queued": True}}, speed="fast", steps=None)
    (folder / LOG).write_bytes(f"INFO {evil}\x1b[2J\xff\n".encode("latin1"))
    page = RunPage(Follower(folder)).page()
    assert "alert" in page
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "Step 5, epoch 1 of 4" in page
    (folder / LIVE).write_text("[" * 100_000)
    assert "Waiting for the first step" in RunPage(Follower(folder)).page()


def test_a_run_that_has_ended_says_so_and_links_to_its_report(tmp_path):
    write_run(tmp_path / "ended", steps=12, epochs=2)
    with served(tmp_path / "ended") as server:
        assert "has no report" in ask(server)[2]
        assert ask(server, "report.html")[0] == 404
        (tmp_path / "ended" / "report.html").write_text("<script>1</script>")
        _, _, page = ask(server)
        status, headers, report = ask(server, "report.html")
    assert "The run has ended: finished." in page
    assert 'href="report.html"' in page
    assert 'http-equiv="refresh"' not in page
    assert (status, report) == (200, "<script>1</script>")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src")
    assert "sandbox" in headers["Content-Security-Policy"]
    write_state(tmp_path / "ended")
    os.utime(tmp_path / "ended" / LIVE, (time.time() + 5, time.time() + 5))
    assert "Step 5 of 100" in RunPage(Follower(tmp_path / "ended")).page()  # it goes on


def test_a_run_without_steps_waits_and_shows_the_party_that_is_away(folder):
    parties = {"a": {"away": 80.0}, "b": {"away": 0.0}}
    write_state(folder, stepped=time.time() - 90.0, parties=parties)
    page = RunPage(Follower(folder)).part()
    assert "No step for 90." in page
    assert "2.5" not in page  # nor how long the rest would take at that speed
    assert "s left" not in page
    assert re.findall(r"<tr><td>(\w)</td><td[^>]*>([^<]+)</td>", page) == [("a", "away for 80.0 s"), ("b", "connected")]


def test_a_run_whose_process_is_gone_says_so(folder):
    write_state(folder, stepped=time.time() - 90.0, written=time.time() - 90.0)
    page = RunPage(Follower(folder)).part()
    assert "has written nothing for 90." in page
    assert "No step for" not in page
    assert "s left" not in page
    assert re.findall(r"<tr><td>a</td><td[^>]*>([^<]+)</td>", page) == ["unknown"]


def test_a_run_that_was_interrupted_says_how_it_goes_on(folder):
    write_state(folder)  # left behind by a process that was killed
    write_run(folder, steps=12, epochs=2)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "status": "interrupted", "error": "SystemExit: 0"}))
    page = RunPage(Follower(folder)).page()
    assert "The run has ended: interrupted." in page
    assert "<code>resume=true</code>" in page
    assert f"<code>flower-vfl report {folder}</code> makes one" in page
    assert "SystemExit" not in page
    assert "<h2>Parties</h2>" not in page


def test_only_a_page_of_its_own_with_the_token_is_answered(folder):
    log_steps(StepLog(folder, name="label"), range(3))
    with served(folder) as server:
        host = f"127.0.0.1:{server.server_port}"
        status, headers, page = ask(server)
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe-inline" not in headers["Content-Security-Policy"].split("style-src")[0]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert server.token not in page
        assert ask(server, "part", Origin=f"http://{host}")[0] == 200
        assert ask(server, "watch.js", Host=f"localhost:{server.server_port}")[0] == 200
        refused = {
            "a name that leads here": ask(server, Host=f"evil.example:{server.server_port}"),
            "no port": ask(server, Host="127.0.0.1"),
            "another site": ask(server, "part", Origin="http://evil.example"),
            "a sandbox": ask(server, "part", Origin="null"),
            "a link of another site": ask(server, **{"Sec-Fetch-Site": "cross-site"}),
        }
        assert {status for status, _, _ in refused.values()} == {403}
        (page,) = {words for _, _, words in refused.values()}
        assert "the address that flower-vfl watch printed" in page
        token = server.token
        hidden = ["/", "/part", f"/{token}", f"/{token}x/", f"/x{token}/part", f"/{token}/../config.toml"]
        hidden += [f"/{token}/config.toml", f"/{token}/%2e%2e/config.toml", "/%e4", "/" + "a" * 30_000]
        answers = [ask(server, path=path) for path in hidden]
        assert [status for status, _, _ in answers] == [404] * len(hidden)
        (page,) = {words for _, _, words in answers}  # whatever was asked for
        assert "The token changes each time flower-vfl watch starts" in page
        for secret in (token, str(folder), VERSION):
            assert secret not in page.split("</style>")[1]
        assert "default-src 'none'" in answers[0][1]["Content-Security-Policy"]
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = ask(server, method=method)
            assert (status, headers["Allow"]) == (405, "GET")
        status, _, words = ask(server, Cookie="x" * 70_000)
        assert (status, len(words) < 60) == (431, True)
        assert ask(server, path="/" + "a" * 70_000)[0] == 414
        assert ask(server)[0] == 200


def test_a_folder_of_several_runs_names_one_and_a_wrong_one_is_refused(tmp_path, folder):
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "config.toml").write_text("")
    write_state(folder)
    with pytest.raises(InputError, match=rf"holds several runs; watch one of them, for instance {folder}"):
        WatchServer(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        WatchServer(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is no folder of a run"):
        WatchServer(tmp_path / "empty")
    with served(folder) as server, pytest.raises(SetupError, match="--port"):
        WatchServer(folder, server.server_port)


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to run the page")
def test_a_browser_shows_new_steps_and_stays_within_the_policy(folder, tmp_path, monkeypatch):
    log_steps(StepLog(folder, name="label"), range(30))
    write_state(folder)
    with served(folder) as server:
        first = server.view.part

        def part():
            write_state(folder, step=77)
            return first()

        monkeypatch.setattr(server.view, "part", part)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        options += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ]
        options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", server.url]
        done = subprocess.run([CHROMIUM, *options], capture_output=True, text=True, timeout=120, check=True)
    assert "Step 77 of 100" in done.stdout
    assert done.stdout.count("<svg") == 2
    assert "Content Security Policy" not in done.stderr
