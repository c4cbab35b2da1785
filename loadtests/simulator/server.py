"""Put one replica together and serve it."""

import asyncio
import contextlib
import gc
import hashlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import uvicorn
import uvloop

from loadtests.simulator.app import VLLM_VERSION, SimulatorApp
from loadtests.simulator.driver import EngineDriver
from loadtests.simulator.generate import Generator, ServedModel
from loadtests.simulator.kv_publisher import KvPublisher
from loadtests.simulator.metrics import EngineMetrics
from loadtests.simulator.options import SimulatorOptions
from loadtests.simulator.prompts import PromptEncoder
from loadtests.simulator.replies import ReplyWriter
from routing.lab.engine_model import EngineModel
from routing.lab.tiers import TierPool

# vLLM's default (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).
_KEEP_ALIVE_S = 5
# Long enough to end what is nearly done; a test or a demo waits for it.
_SHUTDOWN_S = 2
# Where a model folder states no limit of its own.
_DEFAULT_MAX_MODEL_LEN = 32_768


class StartError(Exception):
    """The replica cannot start; the message is one line for a person."""


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own version raises the signal once more when it is done, which would end the
        # process before our sockets are closed.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def run(options: SimulatorOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        StartError: Tokenizer, port or sizes make it impossible.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: SimulatorOptions) -> None:
    engine = _build_engine(options)
    encoder, writer = _load_tokenizer(options)
    model = _describe_model(options, encoder, engine)
    listener = _listen(options.host, options.port)
    publisher = _publish(options)
    metrics = EngineMetrics(engine, model.name)
    publish = (lambda _: None) if publisher is None else publisher.publish
    driver = EngineDriver(engine, metrics, publish, options.speed)
    generator = Generator(
        model, encoder, writer, driver, show_details=options.prompt_tokens_details
    )
    sources = {} if publisher is None else {"0": publisher.sources()}
    app = SimulatorApp(
        model,
        engine,
        encoder,
        generator,
        metrics,
        kv_event_sources=sources,
        api_key=options.api_key,
    )
    server = _Server(_uvicorn_config(app), lambda: _announce(listener, publisher))
    # What start-up made stays for ever; scanning it again and again would cost milliseconds.
    gc.collect()
    gc.freeze()
    if publisher is not None:
        publisher.start()
    engine_task = asyncio.create_task(driver.run())
    # A replica whose engine died must not go on answering.
    engine_task.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve(sockets=[listener])
    finally:
        engine_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await engine_task
        if publisher is not None:
            publisher.stop()


def _load_tokenizer(options: SimulatorOptions) -> tuple[PromptEncoder, ReplyWriter]:
    try:
        encoder = PromptEncoder(options.tokenizer)
        return encoder, ReplyWriter(encoder)
    except (OSError, ValueError) as error:
        raise StartError(f"--tokenizer: {error}") from error


def _build_engine(options: SimulatorOptions) -> EngineModel:
    profile = options.profile
    l1 = TierPool(profile.l1.capacity_tokens // options.block_size) if options.l1 else None
    try:
        return EngineModel(
            profile,
            block_size=options.block_size,
            num_blocks=options.num_blocks,
            l1=l1,
            hash_seed=secrets.randbits(64),
            kv_events=options.kv_events is not None,
        )
    except ValueError as error:
        raise StartError(str(error)) from error


def _describe_model(
    options: SimulatorOptions, encoder: PromptEncoder, engine: EngineModel
) -> ServedModel:
    capacity = engine.capacity_tokens
    max_model_len = options.max_model_len
    if max_model_len is None:
        stated = encoder.max_length
        # transformers writes "no limit" as a number of thirty digits.
        limit = stated if stated < 10**9 else _DEFAULT_MAX_MODEL_LEN
        max_model_len = min(limit, capacity)
    if max_model_len > capacity:
        raise StartError(
            f"--max-model-len {max_model_len} is more than the {capacity} tokens of KV cache"
        )
    identity = f"{options.model} {options.profile.name} {options.block_size}".encode()
    return ServedModel(
        name=options.model,
        root=str(options.tokenizer),
        max_model_len=max_model_len,
        fingerprint=f"vllm-{VLLM_VERSION}-{hashlib.sha256(identity).hexdigest()[:8]}",
        started_s=int(time.time()),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _publish(options: SimulatorOptions) -> KvPublisher | None:
    if options.kv_events is None:
        return None
    try:
        return KvPublisher(options.kv_events, options.block_size)
    except OSError as error:
        raise StartError(f"cannot publish KV events: {error}") from error


def _uvicorn_config(app: SimulatorApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )


def _announce(listener: socket.socket, publisher: KvPublisher | None) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    line = {
        "event": "ready",
        "url": f"http://{shown}:{port}",
        "pid": os.getpid(),
        "kv_events": None if publisher is None else publisher.endpoint,
        "replay": None if publisher is None else publisher.replay_endpoint,
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
