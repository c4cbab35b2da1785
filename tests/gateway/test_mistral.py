"""Models in Mistral's own format: rendered here by mistral-common, and by a replica without it.

That the ids are the engine's is tests/gateway/test_golden.py's to say.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.engine import EngineConfig
from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig
from gateway.prompt.body import BodyKind, RequestBody
from gateway.prompt.bytecache import ByteCache
from gateway.prompt.loading import load_tokenizer
from gateway.prompt.mistral import MistralTokenizer
from gateway.prompt.problem import PromptProblem
from routing.hashing import unpack_tokens
from tests.support.engines import Engine

TEKKEN = Path("tests/data/tokenizers/tekken13")
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def tokenizer():
    return MistralTokenizer.load(str(TEKKEN))


def chat(*contents, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return RequestBody(BodyKind.CHAT, "m", {"model": "m", "messages": messages, **fields}, 100)


def ids(tokenizer, body):
    return unpack_tokens(tokenizer.tokenize(body).packed_tokens)


@pytest.fixture
def mistral_folder(tmp_path):
    """A folder that says by its files what it is."""
    shutil.copytree(TEKKEN, tmp_path, dirs_exist_ok=True)
    (tmp_path / "params.json").write_text("{}")
    return tmp_path


def test_the_folder_says_whether_it_is_mistrals(mistral_folder):
    loaded = load_tokenizer(str(mistral_folder), EngineConfig(), ByteCache(0))
    assert isinstance(loaded.tokenizer, MistralTokenizer)
    (mistral_folder / "params.json").unlink()
    configured = EngineConfig(renderer="mistral")
    loaded = load_tokenizer(str(mistral_folder), configured, ByteCache(0))
    assert isinstance(loaded.tokenizer, MistralTokenizer)


def test_without_the_package_the_reason_says_what_to_install(mistral_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    loaded = load_tokenizer(str(mistral_folder), EngineConfig(), ByteCache(0))
    assert loaded.tokenizer is None
    assert "install warmroute[mistral]" in loaded.problem


def test_nothing_of_it_is_imported_for_other_models():
    code = (
        "import sys; from gateway.prompt.loading import load_tokenizer, EngineConfig, ByteCache\n"
        "load_tokenizer('loadtests/demo_model', EngineConfig(), ByteCache(0))\n"
        "sys.exit('mistral_common' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


def test_kept_texts_give_the_same_ids():
    cache = ByteCache(2**20)
    keeping = MistralTokenizer.load(str(TEKKEN), cache)
    plain = MistralTokenizer.load(str(TEKKEN))
    long = "Once upon a time, \u00e9\u4e2d\U0001f600 there was a gateway.\n" * 20
    for body in (chat(long), chat(long, "Yes?", long + "!"), chat(long, "Yes?", long + "!")):
        assert ids(keeping, body) == ids(plain, body)
    assert cache.hits >= 3


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_ids_are_known_up_to_the_message_with_a_picture(tokenizer):
    before = ("Tell me about rivers and mountains, please. " * 3, "They are long and high.")
    bodies = [
        chat(*before, [{"type": "text", "text": text}, image(url)], "Nice.", "And now?")
        for text, url in (("One?", "https://a.example/1.png"), ("Other", "data:image/png;base64,"))
    ]
    one, other = (tokenizer.tokenize(body) for body in bodies)
    known = unpack_tokens(one.packed_tokens)
    assert not one.whole
    assert one.packed_tokens == other.packed_tokens
    assert one.num_tokens > len(known) > 20
    assert ids(tokenizer, chat(*before, "One?"))[: len(known)] == known


def test_no_file_is_opened_and_no_address_called_for_a_part(tokenizer):
    for part in ({"type": "image", "path": "/etc/passwd"}, {"type": "audio", "url": "http://x/"}):
        with pytest.raises(PromptProblem) as caught:
            tokenizer.tokenize(chat([{"type": "text", "text": "See:"}, part]))
        assert caught.value.reason == "refused"


def test_tokenizing_never_happens_on_the_event_loop(tokenizer):
    assert tokenizer.seconds(tokenizer.begin(chat("Hi"))) > 0.5e-3


class Told(Engine):
    """Renders for others."""

    def paths(self):
        return [request.line.split()[1].decode() for request in self.received]


async def ask(gateways, engine, folder):
    values = config_from_flags([engine.url], str(folder)).model_dump()
    values["models"][0]["block_size"] = 16
    values["prepare"]["check_every"] = 0
    gateway = await gateways(GatewayConfig.model_validate(values))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello there"}]}
    assert (await gateway.client.post(CHAT, json=body)).status_code == 200
    return (await gateway.admin.post("/admin/explain", json=body)).json()


async def test_a_gateway_renders_its_chats_without_asking(engines, gateways, mistral_folder):
    [engine] = await engines(Told())
    told = await ask(gateways, engine, mistral_folder)
    assert (told["num_prompt_tokens"], told.get("problem")) == (7, None)
    assert not any("render" in path or "tokenize" in path for path in engine.paths())


async def test_without_the_package_a_replica_is_asked(
    engines, gateways, mistral_folder, monkeypatch
):
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    [engine] = await engines(Told())
    await ask(gateways, engine, mistral_folder)
    assert "/v1/chat/completions/render" in engine.paths()
