"""One request inside the model engine: what was asked, and how far it has come."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from routing.lab.block_chain import chain_root, extend_keys


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt and the reply that the model will give to it.

    Attributes:
        request_id: Unique among the requests that are not finished.
        prompt_token_ids: At least one.
        output_token_ids: At least one; the engine emits exactly these.
        cache_salt: Shares cached blocks only with requests of the same salt.
        lora_name: Shares cached blocks only with requests of the same adapter.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    cache_salt: str | None = None
    lora_name: str | None = None


class Admission(NamedTuple):
    """What the engine found when it first took a request up: time in seconds, cached tokens."""

    at: float
    l0_tokens: int
    l1_tokens: int
    l2_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that need no prefill, over all tiers; whole blocks."""
        return self.l0_tokens + self.l1_tokens + self.l2_tokens


class NewToken(NamedTuple):
    """One generated token, `position` counted from 0; the first one brings `admission` along."""

    request_id: str
    token_id: int
    position: int
    is_last: bool
    admission: Admission | None

    @property
    def is_first(self) -> bool:
        """Whether this token ends the prefill."""
        return self.position == 0


class Phase(Enum):
    """Where a sequence is; it moves downwards, and back to WAITING when it is preempted."""

    WAITING = "waiting"
    LOADING = "loading"
    LANDED = "landed"
    RUNNING = "running"
    DONE = "done"


class SequenceState:
    """State of one request. The engine model is the only one to change it.

    `computed` counts tokens with KV in the GPU, `known` the prompt and the tokens emitted so far.
    While they differ by more than one, or the prompt is not through, the sequence prefills.
    """

    __slots__ = (
        "admission",
        "blocks",
        "cache_salt",
        "computed",
        "keys",
        "known",
        "lora_name",
        "num_prompt",
        "phase",
        "prefill_end",
        "promised",
        "registered",
        "request_id",
        "root",
        "stored",
        "tokens",
    )

    def __init__(self, request: EngineRequest, block_size: int) -> None:
        self.request_id = request.request_id
        self.cache_salt = request.cache_salt
        self.lora_name = request.lora_name
        self.tokens = array("I", request.prompt_token_ids)
        self.num_prompt = len(self.tokens)
        self.tokens.extend(request.output_token_ids)
        self.known = self.num_prompt
        self.computed = 0
        self.prefill_end = self.num_prompt
        self.root = chain_root(request.cache_salt, request.lora_name)
        # Keys of full blocks: of the prompt at once, of the output as it grows.
        self.keys: list[int] = []
        extend_keys(self.keys, self.root, self.tokens, block_size, self.num_prompt // block_size)
        self.blocks: list[int] = []
        # Leading blocks that are in the prefix cache, and those that L1 and L2 were given.
        self.registered = 0
        self.stored = 0
        # Blocks that the rest of the prefill will need and that nobody else may be promised.
        self.promised = 0
        self.phase = Phase.WAITING
        self.admission: Admission | None = None

    @property
    def num_total(self) -> int:
        """Tokens of prompt and whole reply."""
        return len(self.tokens)

    def restart(self) -> None:
        """Go back to the queue after a preemption: what is known now has to be computed again."""
        self.computed = self.registered = self.stored = 0
        self.prefill_end = self.known
        self.phase = Phase.WAITING
