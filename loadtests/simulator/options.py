"""The command line of a simulated replica; names follow vLLM's where vLLM has the option."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.simulator.kv_encoding import ENCODINGS
from loadtests.simulator.kv_publisher import KvEventOptions
from loadtests.simulator.profiles import ProfileError, load_profile
from loadtests.simulator.shared_directory import MODES, DirectoryOptions
from routing.lab.engine_profile import PROFILES, EngineProfile

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """One replica, as asked for."""

    host: str
    port: int
    model: str
    tokenizer: Path
    profile: EngineProfile
    block_size: int
    num_blocks: int | None
    max_model_len: int | None
    kv_events: KvEventOptions | None
    l1: bool
    shared_directory: DirectoryOptions | None
    data_parallel_size: int
    api_key: str | None
    prompt_tokens_details: bool
    speed: float


def parse_options(arguments: Sequence[str] | None = None) -> SimulatorOptions:
    """Read a command line.

    Raises:
        SystemExit: It is wrong (2), or asked for help (0).
    """
    args = _parser().parse_args(arguments)
    kv_events = KvEventOptions(
        endpoint=args.kv_events_endpoint,
        replay_endpoint=args.kv_events_replay_endpoint,
        topic=args.kv_events_topic,
        form=args.kv_events_encoding,
    )
    return SimulatorOptions(
        host=args.host,
        port=args.port,
        model=args.model,
        tokenizer=args.tokenizer,
        profile=args.profile,
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        max_model_len=args.max_model_len,
        kv_events=kv_events if args.kv_events else None,
        l1=args.l1,
        shared_directory=_shared_directory(args),
        data_parallel_size=args.data_parallel_size,
        api_key=args.api_key,
        prompt_tokens_details=args.enable_prompt_tokens_details,
        speed=args.speed,
    )


def _shared_directory(args: argparse.Namespace) -> DirectoryOptions | None:
    if args.l2_dir is None:
        return None
    return DirectoryOptions(
        path=args.l2_dir,
        mode=args.l2_mode,
        model_path=args.l2_model_path or str(args.tokenizer),
        chunk_tokens=args.l2_chunk_size,
        world_size=args.l2_world_size,
        token_bytes=args.l2_token_bytes,
    )


def _add_shared_directory(add: Callable[..., object]) -> None:
    add("--l2-dir", type=Path, metavar="DIR", help="directory with LMCache-named files as L2")
    add("--l2-mode", choices=MODES, default=MODES[0], help="whose names: LMCache's two forms")
    add("--l2-chunk-size", type=_positive, default=256, metavar="TOKENS")
    add("--l2-world-size", type=_positive, default=1, metavar="N", help="files a chunk")
    add("--l2-model-path", metavar="PATH", help="in the files' names; default: --tokenizer")
    add("--l2-token-bytes", type=int, default=0, metavar="BYTES", help="written for each token")


def _parser() -> argparse.ArgumentParser:
    events = KvEventOptions()
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.simulator",
        description="A vLLM-like replica without a model. Prints one line of JSON when it serves.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True, help="0 lets the system choose")
    add("--model", default="demo-model", help="the name that clients use")
    add("--tokenizer", type=Path, default=DEMO_MODEL, metavar="DIR", help="model folder")
    add(
        "--profile",
        type=_profile,
        default="reference",
        metavar="NAME|FILE",
        help=f"engine times and sizes: {', '.join(PROFILES)}, or a YAML or JSON file",
    )
    add("--block-size", type=_positive, default=16, metavar="TOKENS")
    add("--num-blocks", type=_positive, metavar="N", help="GPU blocks; default: the profile's")
    add("--max-model-len", type=_positive, metavar="TOKENS")
    add("--l1", action="store_true", help="give the replica the profile's host memory tier")
    _add_shared_directory(add)
    add(
        "--data-parallel-size",
        type=_positive,
        default=1,
        metavar="N",
        help="engines behind the address, each with a KV cache of its own",
    )
    add("--kv-events", action=argparse.BooleanOptionalAction, default=True)
    add("--kv-events-endpoint", default=events.endpoint, metavar="ADDRESS")
    add("--kv-events-replay-endpoint", default=events.replay_endpoint, metavar="ADDRESS")
    add("--kv-events-topic", default=events.topic, metavar="TOPIC")
    add("--kv-events-encoding", choices=sorted(ENCODINGS), default=events.form)
    add("--api-key", metavar="KEY")
    add("--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=True)
    add("--speed", type=_speed, default=1.0, metavar="X", help="engine seconds a wall second")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _speed(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _profile(text: str) -> EngineProfile:
    try:
        return load_profile(text)
    except ProfileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
