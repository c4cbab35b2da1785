"""The operators' commands, against a gateway that runs."""

import asyncio
import io
import json

import pytest

from gateway import cli_admin
from gateway.cli import _parser, main
from tests.support.replicas import WAIT_S


async def says_hello(conversation):
    await conversation.answer(b'{"choices":[]}')


async def run(*words, admin):
    """Return exit code, output and errors; the gateway runs in this loop, so in a thread."""
    given = _parser().parse_args([*words, "--admin", admin])
    out, err = io.StringIO(), io.StringIO()
    code = await asyncio.to_thread(cli_admin.call, given, out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
async def command(replicas, gateways):
    """Return a function that runs a command, and the id of the only replica."""
    [one] = await replicas(says_hello)
    gateway = await gateways(one)

    async def call(*words):
        return await run(*words, admin=gateway.gateway.admin_url)

    return call, one.name


async def test_replicas_are_a_table(command):
    call, name = command
    code, out, err = await call("replicas")
    head, row = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["replica", "model", "state", "for", "in", "flight", "weight", "why"]
    told = row.split()
    assert 0 <= int(told.pop(3)) < WAIT_S
    assert told == [name, "default", "ready", "s", "0", "1", "healthy"]


async def test_cordon_drain_uncordon_and_weight(command):
    call, name = command
    code, out, _ = await call("cordon", name, "--reason", "node 7")
    assert code == 0
    assert "cordoned" in out
    assert out.rstrip().endswith("operator: node 7")
    code, out, _ = await call("drain", name, "--wait", "5")
    assert (code, out.rstrip().endswith("operator: node 7, drained")) == (0, True)
    code, out, _ = await call("uncordon", name, "--json")
    assert (code, json.loads(out)["state"]) == (0, "ready")
    code, out, _ = await call("weight", name, "0.5", "--json")
    assert (code, json.loads(out)["weight"]) == (0, 0.5)
    code, out, _ = await call("weight", name, "configured", "--json")
    assert (code, json.loads(out)["weight"]) == (0, 1.0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["cordon", "nobody"], "No replica has the id `nobody`"),
        (["weight", "ID", "0"], "cordon"),
        (["weight", "ID", "nan"], "valid number"),
        (["weight", "ID", "heavy"], "valid number"),
        (["drain", "ID", "--wait", "-1"], "wait_s"),
    ],
)
async def test_what_the_gateway_refuses_is_one_line_and_exit_1(command, words, text):
    call, name = command
    code, out, err = await call(*[name if word == "ID" else word for word in words])
    assert (code, out) == (1, "")
    assert text in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
async def test_without_a_gateway_there_is_one_line_that_names_the_address(url):
    code, out, err = await run("replicas", admin=url)
    assert (code, out) == (1, "")
    assert err == f"warmroute: no admin API answers at {url}, see --admin\n"


async def test_the_public_listener_is_no_admin_api(replicas, gateways):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    url = gateway.gateway.url
    code, _, err = await run("replicas", admin=url)
    assert (code, err) == (1, f"warmroute: no admin API answers at {url}, see --admin\n")


async def test_an_address_without_a_scheme_will_do(replicas, gateways):
    [one] = await replicas(says_hello)
    gateway = await gateways(one)
    code, out, _ = await run("replicas", admin=gateway.gateway.admin_url.partition("://")[2])
    assert (code, one.name in out) == (0, True)


async def test_a_flush_without_a_pool_says_so(command):
    call, _ = command
    assert await call("flush", "l2") == (0, "no model has a shared_cache\n", "")


@pytest.mark.parametrize("text", ["nan", "inf", "soon"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        main(["drain", "a", "--wait", text])
    assert f"must be a number of seconds, got '{text}'" in capsys.readouterr().err


def test_the_command_passes_the_exit_code_on(capsys):
    assert main(["replicas", "--admin", "http://127.0.0.1:1"]) == 1
    assert "see --admin" in capsys.readouterr().err
