"""Models whose engines render chats by code of their own, and by no template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PretrainedConfig

HARMONY = "harmony"
MISTRAL = "mistral"

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
# With weights and tokenizer in Mistral's own format vLLM takes its chat format too. A folder for a
# gateway has no weights, but the parameters that are beside them.
_MISTRAL_MODEL = "params.json"
_MISTRAL_TOKENIZERS = ("tekken.json", "tokenizer.model.v*")


def rendered_by_code(source: str, *, offline: bool = False) -> str | None:
    """Return what renders a model's chats; None for its template, or where nobody can tell.

    Reads files: not for the event loop.

    Args:
        source: A local folder, or the id of a model on the hub.
        offline: Leave the hub alone: its files are in the local cache, or nowhere.
    """
    folder = Path(source)
    if (folder / _MISTRAL_MODEL).is_file() and any(
        any(folder.glob(t)) for t in _MISTRAL_TOKENIZERS
    ):
        return MISTRAL
    try:
        config: dict[str, Any] = PretrainedConfig.get_config_dict(source, local_files_only=offline)[
            0
        ]
    except Exception:  # noqa: BLE001 - transformers raises whatever its parts raise
        return None
    return _BY_MODEL_TYPE.get(str(config.get("model_type")))
