"""`warmroute check FILE`: says whether a file can be used, and what in it looks unintended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import TextIO

from gateway.config.crosschecks import DEFAULT_POLICY
from gateway.config.errors import ConfigError, Finding, Path
from gateway.config.fields import Section
from gateway.config.load import load_document
from gateway.config.models import ExpectedTtftConfig, GatewayConfig, RuleConfig
from gateway.config.summary import summary, used_policies
from gateway.exits import EXIT_OK, EXIT_USAGE

# Policies that want to know what is cached of a prompt, by token ids.
_MATCHING_KINDS = frozenset({"expected_ttft", "prefix_affinity"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def check_file(path: str | os.PathLike[str], environ: Mapping[str, str], out: TextIO) -> int:
    """Check a configuration file without starting anything.

    Args:
        path: YAML file.
        environ: Variables that `${NAME}` in values stands for.
        out: Gets one line a problem, or a summary and one line a warning.

    Returns:
        The exit status: 0 for a valid file, with or without warnings; 2 for an invalid one.
    """
    try:
        config, document = load_document(path, environ)
    except ConfigError as error:
        out.write(f"{error}\n")
        return EXIT_USAGE
    out.write(f"{document.file}: valid\n")
    out.writelines(f"{line}\n" for line in summary(config))
    for finding in warnings(config):
        problem = document.problem(finding)
        out.write(f"{problem.source}: {problem.key}: warning: {problem.text}\n")
    return EXIT_OK


def warnings(config: GatewayConfig) -> list[Finding]:
    """Return what is allowed and yet unlikely to be meant, in the order of the file's sections."""
    return [
        *_open_admin(config),
        *_tokenizers(config),
        *_missing_files(config, ()),
        *_unused_policies(config),
        *_idle_keys(config),
        *_shadowed_rules(config),
        *_idle_pools(config),
    ]


def _open_admin(config: GatewayConfig) -> Iterator[Finding]:
    if config.admin.host not in _LOOPBACK:
        text = "the admin listener has no authentication, let only operators reach this address"
        yield Finding(("admin", "host"), text)


def _tokenizers(config: GatewayConfig) -> Iterator[Finding]:
    matches_prompts = any(
        config.policies[name].kind in _MATCHING_KINDS for name in used_policies(config)
    )
    for i, model in enumerate(config.models):
        path = ("models", i, "tokenizer")
        if model.tokenizer is None and matches_prompts:
            yield Finding(
                path, "not given, so prompts are matched by their bytes and KV events are not used"
            )
        elif model.tokenizer and _is_missing_folder(model.tokenizer):
            text = "no such folder on this machine, without it prompts are matched by their bytes"
            yield Finding(path, text)


def _is_missing_folder(tokenizer: str) -> bool:
    # Anything else may be a hub id, which only the hub could tell.
    return tokenizer.startswith(("/", ".")) and not FilePath(tokenizer).is_dir()


def _missing_files(section: Section, path: Path) -> Iterator[Finding]:
    for key, value in section:
        here = (*path, key)
        if isinstance(value, Section):
            yield from _missing_files(value, here)
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if isinstance(item, Section):
                    yield from _missing_files(item, (*here, i))
        elif value and key.endswith("_file") and not FilePath(value).is_file():
            yield Finding(here, "no such file on this machine, serve does not start without it")


def _unused_policies(config: GatewayConfig) -> Iterator[Finding]:
    for name in sorted(config.policies.keys() - used_policies(config)):
        if name != DEFAULT_POLICY:
            yield Finding(
                ("policies", name),
                "no rule, model or default_policy uses it, use it or remove it",
                show_value=False,
            )


def _idle_keys(config: GatewayConfig) -> Iterator[Finding]:
    for name, policy in config.policies.items():
        if isinstance(policy, ExpectedTtftConfig):
            idle = "decode_steps" if policy.profile == "balanced" else "fixed_s"
            if idle in policy.model_fields_set:
                yield Finding(
                    ("policies", name, idle), f"has no effect with profile {policy.profile}"
                )


def _idle_pools(config: GatewayConfig) -> Iterator[Finding]:
    pinned = {rule.pool for rule in config.rules}
    for i, model in enumerate(config.models):
        if model.weight == 0 and (model.pool or model.name) not in pinned:
            yield Finding(
                ("models", i, "weight"), "no rule names this pool, so it gets no requests"
            )


def _shadowed_rules(config: GatewayConfig) -> Iterator[Finding]:
    for i, rule in enumerate(config.rules):
        for j, earlier in enumerate(config.rules[:i]):
            # A rule with a pool leaves requests for other pools' names to those after it.
            takes_all = earlier.pool is None or earlier.pool == rule.pool
            if takes_all and _conditions(earlier) <= _conditions(rule):
                text = f"never matches, rules[{j}] takes all its requests, swap the two"
                yield Finding(("rules", i), text, show_value=False)
                break


def _conditions(rule: RuleConfig) -> frozenset[tuple[str, str]]:
    when = rule.when
    named = {
        "model": when.model,
        "lora": when.lora,
        "path": when.path,
        "api_key": when.api_key,
    }
    return frozenset(
        [
            *((key, value) for key, value in named.items() if value is not None),
            *((f"header {key}", value) for key, value in when.headers.items()),
        ]
    )
