"""Request bodies: the fields that the simulator acts on; it accepts and ignores all others.

Types are vLLM's, with pydantic's conversions, so that a wrong type fails in the same words.

Source:
    vLLM 0.32, /openapi.json.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
    """What a stream tells about usage."""

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class _Generate(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    echo: bool | None = False
    request_id: str | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)
    truncation_side: str | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)


class ChatRequest(_Generate):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    return_prompt_text: bool | None = None


class CompletionRequest(_Generate):
    """POST /v1/completions."""

    prompt: list[_TokenId] | list[list[_TokenId]] | str | list[str] | None = None
    add_special_tokens: bool = True


class TokenizeChatRequest(BaseModel):
    """POST /tokenize with messages."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    return_token_strs: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeTextRequest(BaseModel):
    """POST /tokenize with a prompt."""

    model_config = ConfigDict(extra="allow")

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="allow")

    tokens: list[_TokenId]
    model: str | None = None
