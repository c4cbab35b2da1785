"""What reloads do to tokenizers, and to what is known of their token ids."""

import shutil
import threading
from pathlib import Path

import pytest

from gateway import building
from gateway.prompt.loading import Loaded
from tests.support.gateways import quick, running
from tests.support.live import sections
from tests.support.replicas import until

CHAT = "/v1/chat/completions"
MODEL = "loadtests/demo_model"
TRUSTED = "warmroute_token_trusted{"


async def other_ids(conversation):
    """Answer as an engine with another tokenizer."""
    is_question = b"/tokenize" in conversation.request.line
    await conversation.answer(b'{"tokens": [9]}' if is_question else b'{"choices": []}')


def with_tokenizer(replica, given=None, **changes):
    values = sections(replica, prepare={"check_every": 100, "timeout_s": 5}, **changes)
    values["models"][0] |= {"tokenizer": MODEL, **(given or {})}
    return values


@pytest.fixture
async def distrusted(replicas, live):
    """A gateway that has found out that its token ids are wrong, and its replica."""
    (replica,) = await replicas(other_ids)
    gateway = await live(with_tokenizer(replica))

    async def is_distrusted():
        return await gateway.gateway.metric(TRUSTED) == 0

    await until(is_distrusted, "the comparisons of the start")
    await until(lambda: num_asked(replica) == 3, "the last of them")
    return gateway, replica


def num_asked(replica):
    return sum(b"/tokenize" in request.line for request in replica.received)


async def test_ids_that_were_proven_wrong_stay_so_over_a_reload(distrusted, chat):
    gateway, replica = distrusted
    asked = num_asked(replica)
    answer = await gateway.reload(with_tokenizer(replica, limits={"max_in_flight": 9}))
    assert answer.json()["result"] == "applied"
    assert await gateway.gateway.metric(TRUSTED) == 0
    await gateway.client.post(CHAT, json=chat())
    assert gateway.gateway.requests()[-1]["rung"] == "hashed"
    assert len(gateway.told("token_ids_distrusted")) == 1
    assert num_asked(replica) == asked, "the same three chats say nothing new"


async def test_a_reload_that_is_refused_does_not_show_ids_as_trusted(distrusted, tmp_path):
    gateway, replica = distrusted
    values = with_tokenizer(replica)
    other = {"name": "n", "tokenizer": str(tmp_path / "none"), "replicas": [{"url": "http://a:1"}]}
    values["models"].append(other)
    assert (await gateway.reload(values)).status_code == 400
    assert await gateway.gateway.metric(TRUSTED) == 0


async def test_ids_by_other_flags_are_compared_anew(distrusted):
    gateway, replica = distrusted
    asked = num_asked(replica)
    flags = {"engine": {"tool_parser": False}}
    assert (await gateway.reload(with_tokenizer(replica, flags))).json()["result"] == "applied"
    await until(lambda: num_asked(replica) > asked, "the comparisons of another start")


async def test_a_model_without_a_tokenizer_shows_no_trust(distrusted):
    gateway, replica = distrusted
    await gateway.reload(sections(replica))
    assert await gateway.gateway.metric(TRUSTED) is None


async def test_a_mended_template_of_the_same_name_is_compared_anew(replicas, live, tmp_path):
    (replica,) = await replicas(other_ids)
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    values = with_tokenizer(replica, {"engine": {"chat_template": str(template)}})
    gateway = await live(values)
    await until(lambda: gateway.told("token_ids_distrusted"), "the comparisons of the start")
    asked = num_asked(replica)
    template.write_text("<s>{{ messages[0].content }}")
    assert (await gateway.reload(values)).json()["result"] == "unchanged"
    await until(lambda: num_asked(replica) > asked, "the comparisons of another start")


async def test_a_template_that_is_gone_refuses_the_reload_and_what_runs_goes_on(
    replicas, live, tmp_path, chat
):
    (replica,) = await replicas(other_ids)
    template = tmp_path / "template.jinja"
    shutil.copy(Path(MODEL) / "chat_template.jinja", template)
    values = with_tokenizer(replica, {"engine": {"chat_template": str(template)}})
    values["prepare"]["check_every"] = 0
    gateway = await live(values)
    template.unlink()
    answer = await gateway.reload()
    assert answer.status_code == 400
    assert str(template) in str(answer.json()["error"]["problems"])
    await gateway.client.post(CHAT, json=chat())
    assert gateway.gateway.requests()[-1]["rung"] == "predicted"


async def test_a_tokenizer_that_was_missing_from_the_start_does_not_hold_up_other_changes(
    replicas, live, tmp_path
):
    (replica,) = await replicas(other_ids)
    missing = {"engine": {"chat_template": str(tmp_path / "none.jinja")}}
    gateway = await live(with_tokenizer(replica, missing))
    values = with_tokenizer(replica, missing, limits={"max_in_flight": 9})
    assert (await gateway.reload(values)).json()["result"] == "applied"
    assert len(gateway.told("tokenizer_unavailable")) == 2


async def test_a_tokenizer_that_does_not_come_is_given_up(replicas, monkeypatch):
    (replica,) = await replicas(other_ids)
    gone_on = threading.Event()

    def hangs(*args, **kwargs):  # as a mount whose server is away
        gone_on.wait(10)
        return Loaded(None, None, "")

    monkeypatch.setattr(building, "load_tokenizer", hangs)
    monkeypatch.setattr(building, "LOAD_TIMEOUT_S", 0.1)
    config = quick(building.GatewayConfig.model_validate(with_tokenizer(replica)))
    async with running(config) as gateway:
        (told,) = [line for line in gateway.log if line["event"] == "tokenizer_unavailable"]
        gone_on.set()
    assert "did not load within 0.1 s" in told["problem"]


async def test_other_files_in_a_tokenizers_folder_are_read_by_the_next_reload(
    replicas, live, tmp_path, chat
):
    (replica,) = await replicas(other_ids)
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.py*"))
    values = with_tokenizer(replica, {"tokenizer": str(folder)})
    values["prepare"]["check_every"] = 0
    gateway = await live(values)

    async def num_tokens():
        answer = await gateway.admin.post("/admin/explain", json=chat())
        return answer.json()["num_prompt_tokens"]

    before = await num_tokens()
    await gateway.reload()
    assert len(gateway.told("tokenizer_loaded")) == 1, "the same files"
    template = folder / "chat_template.jinja"
    template.write_text("longer " * 50 + template.read_text())
    await gateway.reload()
    assert len(gateway.told("tokenizer_loaded")) == 2
    assert await num_tokens() >= before + 50
    shutil.rmtree(folder)
    assert (await gateway.reload()).json()["result"] == "unchanged", "what is loaded goes on"
    folder.mkdir()
    assert (await gateway.reload()).status_code == 400
    assert await num_tokens() >= before + 50
