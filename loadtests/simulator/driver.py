"""The engine model on the wall clock."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from routing.lab.engine_model import EngineModel, StepResult
from routing.lab.kv_events import KvEvent
from routing.lab.sequence import Admission, EngineRequest, NewToken


class Observer(Protocol):
    """Who counts what the engine does; times are wall seconds."""

    def on_first_token(self, generation: "Generation", now: float) -> None:
        """Note the end of a prefill."""

    def on_next_token(self, generation: "Generation", now: float) -> None:
        """Note a decoded token."""

    def on_end(self, generation: "Generation", reason: str, now: float) -> None:
        """Note the end of a request: stop, length or abort."""


class Generation:
    """One request in the engine, seen from its connection: how many tokens there are by now."""

    def __init__(self, request: EngineRequest, finish_reason: str, now: float) -> None:
        self.request = request
        self.finish_reason = finish_reason
        self.arrived_at = now
        self.first_token_at = now
        self.last_token_at = now
        self.num_tokens = 0
        self.admission: Admission | None = None
        self.admitted_at = now
        self.ended = False
        self.aborted = False
        self._wake: asyncio.Future[None] | None = None

    async def changed(self) -> None:
        """Wait for the next token or the end; at once if it has ended."""
        if self.ended:
            return
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    async def finished(self) -> None:
        """Wait for the end."""
        while not self.ended:
            await self.changed()

    def wake(self) -> None:
        """Let changed() return."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class EngineDriver:
    """Runs an EngineModel step by step, `speed` engine seconds a wall second.

    A step begins where the one before ended, not where the timer woke us, so that late timers do
    not add up.
    """

    def __init__(
        self,
        model: EngineModel,
        observer: Observer,
        publish: Callable[[list[KvEvent]], None],
        speed: float = 1.0,
    ) -> None:
        self.model = model
        self._observer = observer
        self._publish = publish
        self._speed = speed
        self._by_id: dict[str, Generation] = {}
        self._work = asyncio.Event()

    def submit(self, request: EngineRequest, finish_reason: str) -> Generation:
        """Hand a request to the engine.

        Raises:
            ValueError: The engine can never run it.
        """
        self.model.submit(request)
        generation = Generation(request, finish_reason, time.monotonic())
        self._by_id[request.request_id] = generation
        self._work.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request at once; nothing if it has ended."""
        if generation.ended:
            return
        self.model.cancel(generation.request.request_id)
        generation.aborted = True
        self._end(generation, "abort", time.monotonic())

    async def run(self) -> None:
        """Drive the engine until cancelled."""
        now = self._engine_time()
        while True:
            duration_s = self.model.begin_step(now)
            if duration_s is None:
                await self._wait_for_work()
                # Timers may fire a little early; engine time never goes back.
                now = max(now, self._engine_time())
                continue
            now += duration_s
            await asyncio.sleep(max(0.0, self._wall_time(now) - time.monotonic()))
            self._deliver(self.model.finish_step())

    async def _wait_for_work(self) -> None:
        self._work.clear()
        load_at = self.model.next_load_at
        if load_at is None:
            await self._work.wait()
            return
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, self._wall_time(load_at) - time.monotonic())
        timer = loop.call_later(delay_s, self._work.set)
        try:
            await self._work.wait()
        finally:
            timer.cancel()

    def _deliver(self, result: StepResult) -> None:
        now = time.monotonic()
        # Before the tokens: who has seen a reply may count on its events being under way.
        if result.events:
            self._publish(list(result.events))
        for token in result.tokens:
            self._deliver_token(token, now)

    def _deliver_token(self, token: NewToken, now: float) -> None:
        generation = self._by_id[token.request_id]
        generation.num_tokens += 1
        if token.admission is not None:
            generation.admission = token.admission
            generation.admitted_at = self._wall_time(token.admission.at)
            generation.first_token_at = now
            self._observer.on_first_token(generation, now)
        else:
            self._observer.on_next_token(generation, now)
        generation.last_token_at = now
        if token.is_last:
            self._end(generation, generation.finish_reason, now)
        else:
            generation.wake()

    def _end(self, generation: Generation, reason: str, now: float) -> None:
        del self._by_id[generation.request.request_id]
        generation.ended = True
        self._observer.on_end(generation, reason, now)
        generation.wake()

    def _engine_time(self) -> float:
        return time.monotonic() * self._speed

    def _wall_time(self, engine_time: float) -> float:
        return engine_time / self._speed
