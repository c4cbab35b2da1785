"""A model's token ids lose their trust when its engine renders otherwise, and regain it."""

import shutil
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.replicas import until
from tests.support.simulators import running_replica

MODEL = Path("loadtests/demo_model")
CHAT = "/v1/chat/completions"


@pytest.fixture
def other_template(tmp_path):
    """The demo's model with another template, as somebody may put on the engines' command line."""
    folder = tmp_path / "other"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    template = folder / "chat_template.jinja"
    template.write_text("Answer politely.\n" + template.read_text())
    return folder


def chat(number):
    text = f"Question {number}: " + "what does a river say to a mountain? " * 20
    return {
        "model": "demo-model",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": text}],
    }


async def trusted(gateway):
    return await gateway.metric("warmroute_token_trusted{")


async def ask(gateway, number):
    answer = await gateway.client.post(CHAT, json=chat(number))
    assert answer.status_code == 200, answer.text
    return gateway.requests()[-1]["rung"]


async def test_an_engine_that_renders_otherwise_is_noticed_at_the_start_and_believed_when_mended(
    gateway_for, other_template
):
    flags = ("--speed", "20", "--no-kv-events", "--port", str(free_port()))
    with running_replica(*flags, "--tokenizer", str(other_template)) as wrong:
        gateway = await gateway_for([wrong], prepare={"check_every": 1})

        async def is_distrusted():
            return await trusted(gateway) == 0

        await until(is_distrusted, "the comparisons of the start")
        assert await ask(gateway, 0) == "hashed"
    with running_replica(*flags) as mended:
        assert mended.url == wrong.url
        number = 0

        async def is_trusted():
            nonlocal number
            number += 1
            answer = await gateway.client.post(CHAT, json=chat(number))
            return answer.status_code == 200 and await trusted(gateway) == 1

        await until(is_trusted, "three equal comparisons in a row")
        assert await ask(gateway, number + 1) != "hashed"
        page = (await gateway.admin.get("/metrics")).text
        equal = next(line for line in page.splitlines() if 'result="equal"' in line)
        assert float(equal.rpartition(" ")[2]) >= 3
