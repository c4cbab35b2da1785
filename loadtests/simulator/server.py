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
from collections.abc import Callable, Iterator, Sequence

import msgspec
import uvicorn
import uvloop

from loadtests.simulator.app import VLLM_VERSION, SimulatorApp
from loadtests.simulator.driver import EngineDriver
from loadtests.simulator.generate import Generator, ServedModel
from loadtests.simulator.kv_publisher import KvPublisher
from loadtests.simulator.metrics import SimulatorMetrics
from loadtests.simulator.options import SimulatorOptions
from loadtests.simulator.prompts import PromptEncoder
from loadtests.simulator.ranks import Ranks
from loadtests.simulator.replies import ReplyWriter
from loadtests.simulator.shared_directory import SharedDirectory
from routing.lab.engine_model import EngineModel
from routing.lab.kv_events import KvEvent
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
    engines = [_build_engine(options) for _ in range(options.data_parallel_size)]
    encoder, writer = _load_tokenizer(options)
    model = _describe_model(options, encoder, engines[0])
    listener = _listen(options.host, options.port)
    publishers = _publishers(options)
    metrics = SimulatorMetrics(engines, model.name)
    drivers = _drivers(options, engines, metrics, publishers)
    generator = Generator(
        model,
        encoder,
        writer,
        Ranks(drivers),
        block_size=options.block_size,
        show_details=options.prompt_tokens_details,
    )
    sources = {str(rank): publisher.sources() for rank, publisher in enumerate(publishers)}
    app = SimulatorApp(
        model,
        engines,
        encoder,
        generator,
        metrics,
        kv_event_sources=sources,
        api_key=options.api_key,
    )
    server = _Server(_uvicorn_config(app), lambda: _announce(listener, publishers))
    # What start-up made stays for ever; scanning it again and again would cost milliseconds.
    gc.collect()
    gc.freeze()
    for publisher in publishers:
        publisher.start()
    engine_tasks = [asyncio.create_task(driver.run()) for driver in drivers]
    for task in engine_tasks:  # a replica whose engine died must not go on answering
        task.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in engine_tasks:
            task.cancel()
        for task in engine_tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for publisher in publishers:
            publisher.stop()


def _drivers(
    options: SimulatorOptions,
    engines: Sequence[EngineModel],
    metrics: SimulatorMetrics,
    publishers: Sequence[KvPublisher],
) -> list[EngineDriver]:
    publish: list[Callable[[list[KvEvent]], None]] = [p.publish for p in publishers]
    publish = publish or [lambda _: None for _ in engines]
    return [
        EngineDriver(engine, observer, tell, options.speed)
        for engine, observer, tell in zip(engines, metrics.engines, publish, strict=True)
    ]


def _load_tokenizer(options: SimulatorOptions) -> tuple[PromptEncoder, ReplyWriter]:
    try:
        encoder = PromptEncoder(options.tokenizer)
        return encoder, ReplyWriter(encoder)
    except (OSError, ValueError) as error:
        raise StartError(f"--tokenizer: {error}") from error


def _build_engine(options: SimulatorOptions) -> EngineModel:
    profile = options.profile
    l1 = TierPool(profile.l1.capacity_tokens // options.block_size) if options.l1 else None
    shared, l2 = options.shared_directory, None
    if shared is not None:
        if not shared.path.is_dir():
            raise StartError(f"--l2-dir: {shared.path} is no directory")
        l2 = SharedDirectory(shared, options.block_size)
    try:
        return EngineModel(
            profile,
            block_size=options.block_size,
            num_blocks=options.num_blocks,
            l1=l1,
            l2=l2,
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


def _publishers(options: SimulatorOptions) -> list[KvPublisher]:
    if options.kv_events is None:
        return []
    try:
        ranks = range(options.data_parallel_size)
        return [KvPublisher(options.kv_events, options.block_size, rank) for rank in ranks]
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


def _announce(listener: socket.socket, publishers: Sequence[KvPublisher]) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    line = {
        "event": "ready",
        "url": f"http://{shown}:{port}",
        "pid": os.getpid(),
        "kv_events": publishers[0].endpoint if publishers else None,
        "replay": publishers[0].replay_endpoint if publishers else None,
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
