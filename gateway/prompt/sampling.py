"""Whether the engine takes a body's sampling parameters: else the body is refused. Pure.

Source: vLLM 0.32, SamplingParams. Only what clients get wrong in practice is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompt.coercion import as_float, as_int
from gateway.prompt.problem import REFUSED, PromptProblem

# Below this vLLM samples greedily.
_GREEDY_TEMPERATURE = 1e-5


def check_sampling(body: Mapping[str, Any], *output_keys: str) -> None:
    """Check a body's sampling parameters.

    Args:
        body: Its fields.
        output_keys: Where it limits its answer.

    Raises:
        PromptProblem: `refused`.
    """
    temperature = _given(body, "temperature")
    top_p = _given(body, "top_p")
    number = as_int(body["n"]) if body.get("n") is not None else 1
    limits = [as_int(body[key]) for key in output_keys if body.get(key) is not None]
    greedy = temperature is not None and temperature < _GREEDY_TEMPERATURE
    if (
        (temperature is not None and temperature < 0)
        or (top_p is not None and not 0 < top_p <= 1)
        or number < 1
        or (greedy and number > 1)
        or min(limits, default=1) < 1
    ):
        raise PromptProblem(REFUSED)


def _given(body: Mapping[str, Any], key: str) -> float | None:
    return None if body.get(key) is None else as_float(body[key])
