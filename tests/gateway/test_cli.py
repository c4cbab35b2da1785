"""The command: exit codes, and one clear line where something is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from gateway.cli import main
from gateway.config.guards import TimeoutsConfig

COMMAND = [sys.executable, "-m", "gateway.cli"]
# Importing everything takes 3 s of a core of its own.
START_S = 90.0


def run(*arguments):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=START_S, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve"], "warmroute serve: give --config FILE, or --replica URL once or more"),
        (
            ["serve", "x.yaml", "--config", "x.yaml"],
            "warmroute serve: FILE and --config exclude each other",
        ),
        (
            ["serve", "--config", "x.yaml", "--replica", "http://a:1"],
            "warmroute serve: --config and --replica exclude each other",
        ),
        (
            ["serve", "--config", "x.yaml", "--admin-port", "1"],
            "warmroute serve: --config and --admin-port exclude each other",
        ),
        (
            ["serve", "--replica", "foo"],
            "--replica: must be http://HOST:PORT or https://HOST:PORT, got 'foo'",
        ),
        (["serve", "--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["serve", "/nowhere.yaml"], "/nowhere.yaml"),
        (["serve", "--config", "/nowhere.yaml", "--workers", "2"], "/nowhere.yaml"),
    ],
)
def test_wrong_calls_get_one_line_and_exit_2(arguments, line, capsys):
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    err = capsys.readouterr().err
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("number", ["0", "-1", "65", "many"])
def test_a_number_of_workers_that_cannot_be_is_refused(number, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--replica", "http://a:1", "--workers", number])
    assert stopped.value.code == 2
    assert f"--workers: must be from 1 to 64, got '{number}'" in capsys.readouterr().err


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_taken_port_is_one_line(which):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--admin-port": "0", which: port}
        flags = [word for pair in ports.items() for word in pair]
        done = run("serve", "--replica", "http://127.0.0.1:1", "--host", "127.0.0.1", *flags)
    assert done.returncode == 1
    expected = f"warmroute: cannot listen on 127.0.0.1:{port}: address already in use\n"
    assert done.stderr == expected


def test_an_empty_replica_list_names_its_line(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n  - name: m\n    replicas: []\n")
    done = run("serve", "--config", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{file}:3: models[0].replicas: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_check_tells_what_is_in_a_good_file(tmp_path, capsys):
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n  - name: m\n    replicas: [{url: 'http://a:1'}]\n")
    assert main(["check", str(file)]) == 0
    assert "m" in capsys.readouterr().out


def test_version(capsys):
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("warmroute ")


def test_without_its_tokenizer_a_gateway_serves_and_says_so_once(tmp_path):
    """And SIGTERM ends an idle gateway long before `drain_s`, with code 0."""
    ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    flags = ["--replica", "http://127.0.0.1:1", "--tokenizer", str(tmp_path), *ports]
    process = subprocess.Popen(
        [*COMMAND, "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    lines = []
    try:
        while not lines or lines[-1]["event"] != "ready":
            lines.append(json.loads(process.stdout.readline()))
        url = lines[-1]["url"]
        assert httpx.get(f"{url}/livez").status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 503
        asked_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=START_S)
        assert time.monotonic() - asked_at < TimeoutsConfig().drain_s / 3
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    lines += [json.loads(line) for line in output.splitlines()]
    told = [line for line in lines if line["event"] == "tokenizer_unavailable"]
    assert len(told) == 1
    assert str(tmp_path) in told[0]["problem"]
    assert errors == ""


def test_a_hub_that_does_not_answer_does_not_keep_a_gateway_that_stops(tmp_path):
    ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    flags = ["--replica", "http://127.0.0.1:1", "--tokenizer", "nobody/nothing", *ports]
    with socket.create_server(("127.0.0.1", 0)) as hub:  # accepts, and says nothing
        hub.settimeout(START_S)
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        process = subprocess.Popen(
            [*COMMAND, "serve", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        try:
            with hub.accept()[0]:
                process.send_signal(signal.SIGTERM)
                assert process.wait(40) == 0, "the hub's client would try for a minute"
        finally:
            process.kill()
            process.wait()
