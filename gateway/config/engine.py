"""How a model's engines turn requests into token ids: what their command line decides."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.config.fields import Section

DisabledThinkingEffort = Literal["auto", "none", "low", "medium", "high", "xhigh", "max"]


class EngineConfig(Section):
    """Flags of the engines that change what a request's token ids are.

    Token ids are computed here as the engines compute them, so what their command line says about
    it has to be said here too. A wrong value costs prefix matches and never an answer; it shows in
    `warmroute_token_check_total`, as prompts are compared with the replicas' `/tokenize`.
    """

    renderer: Literal["auto", "template", "mistral", "replica"] = Field(
        "auto",
        description="Who turns a chat into token ids. `template`: the gateway, by the model's chat "
        "template. `mistral`: the gateway, by mistral-common, for engines with --tokenizer-mode "
        "mistral. `replica`: a replica's /tokenize, for models whose engine renders by other code "
        "(Harmony of gpt-oss, DeepSeek V3.2). `auto` finds out from the tokenizer's folder.",
    )
    chat_template: str | None = Field(
        None,
        description="File with the template that the engines were given by --chat-template. Left "
        "out, it is the tokenizer's own.",
    )
    content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description="--chat-template-content-format: whether the template gets the text of a "
        "message or its list of parts. `auto` finds out from the template, as engines do.",
    )
    default_chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="--default-chat-template-kwargs: values for the template that a request may "
        "override, such as `{enable_thinking: false}`.",
    )
    tool_parser: bool = Field(
        True,
        description="Whether the engines run with --enable-auto-tool-choice and "
        "--tool-call-parser. Without them they refuse tools, and what is refused must not count "
        "as cached. True, as taking a good request for a refused one would lose its match.",
    )
    reasoning_parser: bool = Field(
        True,
        description="Whether the engines run with --reasoning-parser. Without it they refuse "
        "budgets for thinking. True, for the same reason.",
    )
    exclude_tools_when_tool_choice_none: bool = Field(
        False,
        description="The engine's flag of this name: tools are hidden from the template where "
        "tool_choice is none. Off, as in engines.",
    )
    trust_request_chat_template: bool = Field(
        False,
        description="The engine's flag of this name: requests may bring a template. Without it "
        "engines refuse them. Off, as in engines.",
    )
    disabled_thinking_effort: DisabledThinkingEffort = Field(
        "auto",
        description="The engine's flag of this name: the effort that `thinking: {type: disabled}` "
        "of the Messages API stands for. `auto` finds out from the template, as engines do.",
    )
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Tokens of prompt and answer together; a longer prompt is refused by engines "
        "and has no part in the index. Left out, it is read from the replicas.",
    )
