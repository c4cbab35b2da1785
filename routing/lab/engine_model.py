"""A model of one vLLM replica over virtual time.

It schedules as vLLM v1 does (continuous batching, chunked prefill behind the decodes, one token
budget a step), keeps a block cache as vLLM does, and prices every step by an EngineProfile. Time
enters as `now`, in seconds of any origin that never goes back. A driver does this, for ever:

    duration_s = model.begin_step(now)
    if duration_s is None:  wait for a request, or until model.next_load_at
    else:                   at now + duration_s: result = model.finish_step()

Requests may be submitted and cancelled at any moment, also between begin_step and finish_step.

Source:
    vllm/v1/core/sched/scheduler.py, kv_cache_manager.py and block_pool.py of vLLM 0.32.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from routing.lab.engine_profile import EngineProfile, prefill_pairs
from routing.lab.kv_cache import KvCache
from routing.lab.kv_events import KvEvent
from routing.lab.sequence import Admission, EngineRequest, NewToken, Phase, SequenceState
from routing.lab.tiers import FarTier, LoadPlan, TierPool, Tiers


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start; prompt tokens count when the engine takes a request up."""

    prompt_tokens: int = 0
    l0_hit_tokens: int = 0
    external_query_tokens: int = 0
    l1_hit_tokens: int = 0
    l2_hit_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step brought: tokens in batch order, requests that ended, cache changes in order."""

    tokens: Sequence[NewToken]
    finished: Sequence[str]
    events: Sequence[KvEvent]


@dataclass(slots=True)
class _Step:
    budget: int
    work: list[tuple[SequenceState, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    token_pairs: int = 0
    kv_tokens: int = 0
    preempted: bool = False


class EngineModel:
    """One replica.

    Args:
        profile: Times and limits.
        block_size: Tokens a block.
        num_blocks: GPU blocks as vLLM counts them (num_gpu_blocks: one of them is never used);
            default: what profile.l0_tokens gives.
        l1: This replica's host memory; None switches the tier off.
        l2: Pool shared with other models of the same block size, or a tier of another kind; None
            switches the tier off.
        hash_seed: Makes the reported block hashes differ between replicas and restarts.
        kv_events: Whether to report cache changes; without, StepResult.events stays empty.

    Raises:
        ValueError: There is no usable block.
    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        l1: TierPool | None = None,
        l2: TierPool | FarTier | None = None,
        hash_seed: int = 0,
        kv_events: bool = True,
    ) -> None:
        self.profile = profile
        self.block_size = block_size
        self.num_blocks = profile.l0_tokens // block_size if num_blocks is None else num_blocks
        if self.num_blocks < 2 or block_size < 1:
            raise ValueError(f"{self.num_blocks} blocks of {block_size} tokens leave none to use")
        self.counters = EngineCounters()
        # vLLM keeps one block back as the null block.
        self._cache = KvCache(self.num_blocks - 1, block_size, hash_seed, events=kv_events)
        self._tiers = Tiers(profile, block_size, l1, l2)
        self._by_id: dict[str, SequenceState] = {}
        self._waiting: deque[SequenceState] = deque()
        # Landing time, blocks under way, and for whom; in the order in which they will land.
        self._loading: deque[tuple[float, int, SequenceState]] = deque()
        self._landed: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []
        self._step: _Step | None = None

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def num_loading(self) -> int:
        """Requests whose blocks are under way from L1 or L2, or have just arrived."""
        return len(self._loading) + len(self._landed)

    @property
    def num_waiting(self) -> int:
        """Requests that are not in the batch, those that load included."""
        return len(self._waiting) + self.num_loading

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the GPU blocks that sequences hold; cached blocks nobody uses do not count."""
        return self._cache.pool.num_used / self._cache.pool.num_blocks

    @property
    def capacity_tokens(self) -> int:
        """Most tokens that one sequence may reach."""
        return self._cache.pool.num_blocks * self.block_size

    @property
    def next_load_at(self) -> float | None:
        """Time at which the next load lands, None while nothing is loading."""
        return self._loading[0][0] if self._loading else None

    def submit(self, request: EngineRequest) -> None:
        """Queue a request behind those that wait.

        Raises:
            ValueError: The id is in use, prompt or reply is empty, or both do not fit the cache.
        """
        if request.request_id in self._by_id:
            raise ValueError(f"request {request.request_id!r} is already here")
        if not len(request.prompt_token_ids) or not len(request.output_token_ids):
            raise ValueError("prompt and output must have at least one token each")
        sequence = SequenceState(request, self.block_size)
        # The last token is never computed, so it needs no room.
        if sequence.num_total - 1 > self.capacity_tokens:
            raise ValueError(f"{sequence.num_total} tokens, room for {self.capacity_tokens + 1}")
        self._by_id[sequence.request_id] = sequence
        self._waiting.append(sequence)

    def cancel(self, request_id: str) -> bool:
        """Drop a request wherever it is and free what it holds.

        Returns:
            False if no such request is unfinished.
        """
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.phase is Phase.RUNNING:
            self._running.remove(sequence)
        elif sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        elif sequence.phase is Phase.LANDED:
            self._landed.remove(sequence)
        else:
            self._loading = deque(entry for entry in self._loading if entry[2] is not sequence)
        self._cache.release(sequence)
        sequence.phase = Phase.DONE
        return True

    def reset_prefix_cache(self, *, external: bool = False) -> bool:
        """Forget all cached blocks, and those of L1 and L2 too if `external`.

        Returns:
            False, with nothing done, while any sequence holds blocks.
        """
        if not self._cache.clear():
            return False
        if external:
            self._tiers.clear()
        return True

    def begin_step(self, now: float) -> float | None:
        """Schedule the next step.

        Returns:
            Its duration in seconds; None if nothing can run before a request comes or a load lands.

        Raises:
            RuntimeError: The step before is not finished.
        """
        if self._step is not None:
            raise RuntimeError("begin_step before finish_step")
        self._land_loads(now)
        step = self._schedule(now)
        while step.preempted and not step.work:
            # The only runner gave way to itself, and nothing else would wake the driver.
            step = self._schedule(now)
        if not step.work:
            return None
        self._step = step
        self.counters.steps += 1
        return self.profile.step.step_s(
            step.prefill_tokens, step.token_pairs, len(step.work), step.kv_tokens
        )

    def finish_step(self) -> StepResult:
        """End the step: count what was computed, emit tokens, hand out cache changes.

        Raises:
            RuntimeError: No step was begun.
        """
        step = self._step
        if step is None:
            raise RuntimeError("finish_step before begin_step")
        self._step = None
        tokens: list[NewToken] = []
        finished: list[str] = []
        for sequence, num_tokens in step.work:
            if sequence.phase is not Phase.RUNNING:
                continue  # cancelled while the step ran
            sequence.computed += num_tokens
            prefill_ends = sequence.computed == sequence.prefill_end
            if self._tiers and (prefill_ends or sequence.registered > sequence.stored):
                self._tiers.store(sequence, prefill_ends=prefill_ends)
            if sequence.computed == sequence.known:
                self._emit(sequence, tokens, finished)
        self.counters.generated_tokens += len(tokens)
        return StepResult(tokens, finished, self._cache.take_events())

    def _emit(self, sequence: SequenceState, tokens: list[NewToken], finished: list[str]) -> None:
        position = sequence.known - sequence.num_prompt
        token_id = sequence.tokens[sequence.known]
        sequence.known += 1
        is_last = sequence.known == sequence.num_total
        admission = None if position else sequence.admission
        tokens.append(NewToken(sequence.request_id, token_id, position, is_last, admission))
        if is_last:
            finished.append(sequence.request_id)
            self.cancel(sequence.request_id)

    # What follows is one step's schedule, in the order in which it is made.

    def _land_loads(self, now: float) -> None:
        while self._loading and self._loading[0][0] <= now:
            _, num_blocks, sequence = self._loading.popleft()
            self._cache.register(sequence, sequence.registered + num_blocks)
            sequence.computed = sequence.registered * self.block_size
            # What came from L2 stays in L1 as well.
            self._tiers.store(sequence, prefill_ends=False)
            sequence.phase = Phase.LANDED
            self._landed.append(sequence)

    def _schedule(self, now: float) -> _Step:
        step = _Step(self.profile.chunk_tokens)
        self._schedule_running(step)
        # As in vLLM, a step that had to push somebody out takes nobody in.
        if not step.preempted and self._start_landed(step):
            self._admit_waiting(step, now)
        return step

    def _schedule_running(self, step: _Step) -> None:
        running = self._running
        at = 0
        while at < len(running) and step.budget:
            sequence = running[at]
            num_tokens = min(sequence.known - sequence.computed, step.budget)
            if self._cache.has_room(sequence, num_tokens):
                self._plan(step, sequence, num_tokens)
                at += 1
            else:
                # The youngest gives way, which may be the one that asks.
                self._preempt(running.pop())
                step.preempted = True

    def _preempt(self, sequence: SequenceState) -> None:
        self._cache.release(sequence)
        sequence.restart()
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _start_landed(self, step: _Step) -> bool:
        """Put sequences with loaded blocks into the batch; False if one of them found no room.

        They come before the queue: what they need is promised to them already.
        """
        while self._landed and self._batch_has_room(step):
            sequence = self._landed[0]
            num_tokens = min(sequence.known - sequence.computed, step.budget)
            if not self._cache.has_room(sequence, num_tokens):
                return False
            self._landed.popleft()
            self._run(step, sequence)
        return True

    def _admit_waiting(self, step: _Step, now: float) -> None:
        while self._waiting and self._batch_has_room(step):
            sequence = self._waiting[0]
            # The last known token has to be computed, or there is nothing to sample from.
            end = min((sequence.known - 1) // self.block_size, len(sequence.keys))
            if not self._cache.admit(sequence, end):
                return
            self._waiting.popleft()
            load = self._tiers.find_load(sequence, end) if self._tiers else LoadPlan(0, 0, 0.0)
            if sequence.admission is None:
                self._count_admission(sequence, load, now)
            if load.num_blocks:
                sequence.phase = Phase.LOADING
                self._cache.grow(sequence, load.num_blocks)
                landed_at = self._tiers.begin_load(load, now)
                self._loading.append((landed_at, load.num_blocks, sequence))
            else:
                self._run(step, sequence)

    def _batch_has_room(self, step: _Step) -> bool:
        return step.budget > 0 and len(self._running) < self.profile.max_sequences

    def _run(self, step: _Step, sequence: SequenceState) -> None:
        sequence.phase = Phase.RUNNING
        self._running.append(sequence)
        self._plan(step, sequence, min(sequence.known - sequence.computed, step.budget))

    def _plan(self, step: _Step, sequence: SequenceState, num_tokens: int) -> None:
        """Give a sequence its tokens of this step: take blocks, cache those that will be full."""
        computed = sequence.computed
        end = computed + num_tokens
        missing = end - len(sequence.blocks) * self.block_size
        if missing > 0:
            self._cache.grow(sequence, -(-missing // self.block_size))
        if end >= (sequence.registered + 1) * self.block_size:
            self._cache.register(sequence, end // self.block_size)
        step.budget -= num_tokens
        step.work.append((sequence, num_tokens))
        if computed < sequence.prefill_end:
            step.prefill_tokens += num_tokens
            step.token_pairs += prefill_pairs(computed, num_tokens)
        else:
            step.kv_tokens += end

    def _count_admission(self, sequence: SequenceState, load: LoadPlan, now: float) -> None:
        l0, l1, l2 = (
            n * self.block_size for n in (len(sequence.blocks), load.l1_blocks, load.l2_blocks)
        )
        sequence.admission = Admission(now, l0, l1, l2)
        counters = self.counters
        counters.prompt_tokens += sequence.num_prompt
        counters.l0_hit_tokens += l0
        counters.l1_hit_tokens += l1
        counters.l2_hit_tokens += l2
        if self._tiers:
            counters.external_query_tokens += sequence.num_prompt - l0
