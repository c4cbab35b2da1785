"""Models whose engines render chats by code of their own, and by no template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PretrainedConfig

HARMONY = "harmony"

# Source: vLLM 0.32, renderers/registry and what its configuration chooses by itself.
_BY_MODEL_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "gpt_oss": HARMONY,
        "deepseek_v32": "deepseek",
        "deepseek_v4": "deepseek",
        "kimi_k3": "kimi",
        "kimi_audio": "kimi",
        "inkling": "inkling",
    }
)
# With both of these in a model's folder vLLM takes Mistral's own tokenizer and chat format.
_MISTRAL_FILES = ("params.json", "tekken.json")


def rendered_by_code(source: str) -> str | None:
    """Return what renders a model's chats; None for its template, or where nobody can tell.

    Reads files: not for the event loop.

    Args:
        source: A local folder, or the id of a model on the hub.
    """
    folder = Path(source)
    if all((folder / name).is_file() for name in _MISTRAL_FILES):
        return "mistral"
    try:
        config: dict[str, Any] = PretrainedConfig.get_config_dict(source)[0]
    except Exception:  # noqa: BLE001 - transformers raises whatever its parts raise
        return None
    return _BY_MODEL_TYPE.get(str(config.get("model_type")))
