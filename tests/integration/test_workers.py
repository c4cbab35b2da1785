"""Several workers on one host: one gateway to everybody outside."""

import os
import signal
import socket
import subprocess
import threading

import httpx
import pytest

from gateway.workers.embedded import NoServer, find_program
from tests.support.crews import CHAT, COMMAND, ROOT, is_alive, running_crew
from tests.support.simulators import running_replica, wait_until

OK = 'warmroute_requests_total{model="m",path="/v1/chat/completions",status="200"}'


@pytest.fixture(scope="module", autouse=True)
def _needs_a_server(require):
    try:
        find_program()
    except NoServer as missing:
        require("a Valkey or Redis server", False, str(missing))


@pytest.fixture(scope="module")
def replica():
    with running_replica("--speed", "20") as running:
        yield running


def config_of(replica, **more):
    models = [{"name": "demo-model", "pool": "m", "replicas": [{"url": replica.url, "id": "r"}]}]
    return {"models": models, "health": {"interval_s": 0.1}, **more}


@pytest.fixture(scope="module")
def crew(replica, tmp_path_factory):
    """Two workers that several tests share; each test leaves both serving."""
    with running_crew(tmp_path_factory.mktemp("crew"), config_of(replica)) as running:
        yield running


@pytest.fixture(autouse=True)
def _all_serve_again(request):
    yield
    if "crew" in request.fixturenames:
        running = request.getfixturevalue("crew")
        wait_until(running.all_serve, 60.0)


def test_both_workers_serve_and_one_page_counts_all(crew):
    before = crew.metric(OK)
    answers = crew.by_all()
    assert {answer.status_code for answer in answers} == {200}
    assert crew.metric(OK) == before + len(answers)
    assert crew.metric('warmroute_workers{state="serving"}') == 2


def test_the_metrics_page_names_each_series_once(crew):
    lines = crew.admin("/metrics").text.splitlines()
    series = [line.rpartition(" ")[0] for line in lines if line and not line.startswith("#")]
    assert len(series) == len(set(series))


def test_a_crashed_worker_comes_back_and_its_counters_stay(crew):
    crew.by_all()
    counted, restarts = crew.metric(OK), crew.metric("warmroute_worker_restarts_total")
    victim = crew.worker(0)
    os.kill(victim["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(victim["pid"]))
    # The kernel gives new connections to the other one at once.
    assert {crew.chat().status_code for _ in range(10)} == {200}
    assert crew.metric(OK) == counted + 10
    wait_until(crew.all_serve, 60.0)
    assert crew.worker(0)["pid"] != victim["pid"]
    assert crew.metric("warmroute_worker_restarts_total") == restarts + 1
    assert crew.lines("process_ended")[-1]["signal"] == "SIGKILL"
    answers = crew.by_all()
    assert {answer.status_code for answer in answers} == {200}, "it takes connections when it can"
    assert crew.metric(OK) == counted + 10 + len(answers)


def test_a_worker_that_starts_again_refuses_nobody(crew):
    os.kill(crew.worker(1)["pid"], signal.SIGKILL)
    wait_until(lambda: crew.worker(1)["state"] == "starting")
    statuses = []
    while not crew.all_serve():
        statuses.append(crew.chat().status_code)
        assert crew.admin("/readyz").status_code == 200
    assert set(statuses) == {200}


def test_the_shared_server_comes_back(crew):
    killed = crew.status()["shared_server"]["pid"]
    restarts = crew.metric("warmroute_shared_server_restarts_total")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: crew.status()["shared_server"]["pid"] != killed)
    wait_until(crew.all_serve)
    assert {answer.status_code for answer in crew.by_all()} == {200}
    assert crew.metric("warmroute_shared_server_restarts_total") == restarts + 1


def test_an_operators_word_reaches_all(crew):
    held = crew.admin("/admin/replicas/r/cordon", "POST", json={"reason": "test"})
    assert held.json()["state"] == "cordoned"
    assert {answer.status_code for answer in crew.by_all()} == {503}
    [shown] = crew.admin("/admin/replicas").json()["replicas"]
    assert (shown["state"], shown["hold"]["reason"]) == ("cordoned", "test")
    assert crew.admin("/admin/replicas/r/uncordon", "POST").status_code == 200
    assert {answer.status_code for answer in crew.by_all()} == {200}


def test_errors_of_the_admin_api_pass(crew):
    unknown = crew.admin("/admin/replicas/x/cordon", "POST")
    assert (unknown.status_code, unknown.json()["error"]["reason"]) == (404, "replica_not_found")
    assert crew.admin("/nowhere").status_code == 404
    wrong = crew.admin("/metrics", "POST")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")


def test_other_questions_are_answered_by_one(crew):
    body = {"model": "demo-model", "messages": [{"role": "user", "content": "hello"}]}
    told = crew.admin("/admin/explain", "POST", json=body)
    assert told.json()["replica"] == "r"


def test_a_flush_reaches_all(crew):
    told = crew.admin("/admin/flush?tier=L2", "POST")
    assert (told.status_code, told.json()["flushed"]) == (200, {})
    assert len(told.json()["gateways"]["live"]) == 2
    assert len([line for line in crew.lines("operator") if "flushed" in line]) == 2


@pytest.mark.parametrize("how", ["operator", "signal"])
def test_a_reload_reaches_all(crew, how):
    def reload_all():
        if how == "signal":
            crew.process.send_signal(signal.SIGHUP)
            return
        told = crew.admin("/admin/reload", "POST").json()
        assert len(told["workers"]) == 2

    def headers():
        return {"x-warmroute-replica" in answer.headers for answer in crew.by_all()}

    crew.write(decision_headers=False)
    reload_all()
    wait_until(lambda: headers() == {False})
    crew.write(decision_headers=True)
    reload_all()
    wait_until(lambda: headers() == {True})


def test_a_file_that_is_refused_is_told_and_a_worker_that_restarts_takes_the_last_good_one(crew):
    crew.write(decision_headers="perhaps")
    refused = crew.admin("/admin/reload", "POST")
    assert refused.status_code == 400
    assert "decision_headers" in refused.json()["error"]["problems"][0]
    killed = crew.worker(0)["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: crew.worker(0)["pid"] != killed)
    wait_until(crew.all_serve, 60.0)
    assert {answer.status_code for answer in crew.by_all()} == {200}
    crew.write(decision_headers=True)
    assert crew.admin("/admin/reload", "POST").status_code == 200


def test_the_admin_command_works_unchanged(crew):
    done = subprocess.run(
        [*COMMAND[:-1], "replicas", "--admin", crew.admin_url],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[1].split()[:3] == ["r", "m", "ready"]


def processes_of(crew):
    status = crew.status()
    return [status["shared_server"]["pid"], *(worker["pid"] for worker in status["workers"])]


def test_a_drain_waits_for_streams_of_all_workers_and_leaves_nobody(replica, tmp_path):
    """Streams on both workers end whole; a second signal is not needed, and the code is 0."""
    with running_crew(tmp_path, config_of(replica)) as crew:
        pids = processes_of(crew)
        body = {
            "model": "demo-model",
            "messages": [{"role": "user", "content": "a long one"}],
            "max_tokens": 1000,
            "ignore_eos": True,
            "stream": True,
        }
        texts, begun = [], threading.Semaphore(0)

        def stream():
            with httpx.stream("POST", crew.url + CHAT, json=body, timeout=30.0) as answer:
                lines = answer.iter_lines()
                text = next(lines)
                begun.release()
                texts.append("\n".join([text, *lines]))

        clients = [threading.Thread(target=stream) for _ in range(8)]
        for client in clients:
            client.start()
        for _ in clients:
            assert begun.acquire(timeout=20.0)
        crew.process.send_signal(signal.SIGTERM)
        wait_until(lambda: crew.admin("/readyz").json().get("reason") == "stopping")
        assert crew.admin("/livez").status_code == 200
        for client in clients:
            client.join(30.0)
        assert len(texts) == 8
        assert all("[DONE]" in text for text in texts)
        assert crew.process.wait(10.0) == 0
        assert {line["worker"] for line in crew.lines("request")} == {0, 1}
        assert not any(map(is_alive, pids))


def test_children_do_not_outlive_a_supervisor_that_is_killed(replica, tmp_path):
    with running_crew(tmp_path, config_of(replica)) as crew:
        pids = processes_of(crew)
        assert all(map(is_alive, pids))
        crew.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)))


def refusal(*arguments, **environ):
    done = subprocess.run(
        [*COMMAND, "--workers", "2", *arguments],
        capture_output=True, text=True, cwd=ROOT, check=False, env={**os.environ, **environ},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_what_is_wrong_is_said_once_with_the_code_of_a_single_process(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n  - name: m\n    replicas: []\n")
    code, words = refusal("--config", str(file))
    assert code == 2
    assert words.startswith(f"{file}:3: models[0].replicas: ")
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_taken_port_is_one_line(which):
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--admin-port": "0", which: port}
        flags = [word for pair in ports.items() for word in pair]
        found = refusal("--replica", "http://127.0.0.1:1", "--host", "127.0.0.1", *flags)
    assert found == (1, f"warmroute: cannot listen on 127.0.0.1:{port}: address already in use\n")


@pytest.mark.parametrize("code", [2, 7])
def test_workers_that_cannot_start_end_the_supervisor_with_their_code(tmp_path, code):
    """One that says the configuration cannot be used is believed at once, others after three."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys\nif 'gateway.workers.worker' in sys.orig_argv: os._exit({code})\n"
    )
    ports = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0")
    found, _ = refusal("--replica", "http://127.0.0.1:1", *ports, PYTHONPATH=str(tmp_path))
    assert found == code
