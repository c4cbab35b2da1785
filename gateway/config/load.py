"""From a YAML file, or from command-line flags, to a `GatewayConfig`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from gateway.config.access import KeyConfig, KeysFile
from gateway.config.crosschecks import DEFAULT_POLICY, cross_findings
from gateway.config.document import Document, parse, shown_value
from gateway.config.errors import ConfigError, Finding, Problem
from gateway.config.messages import findings_of
from gateway.config.models import GatewayConfig


def load_config(path: str | os.PathLike[str], environ: Mapping[str, str]) -> GatewayConfig:
    """Read a configuration file.

    Args:
        path: YAML file, UTF-8.
        environ: Variables that `${NAME}` in values stands for.

    Raises:
        ConfigError: With every problem found, in the order of their lines.
    """
    return load_document(path, environ)[0]


def load_document(
    path: str | os.PathLike[str], environ: Mapping[str, str]
) -> tuple[GatewayConfig, Document]:
    """Read a configuration file, and keep what is needed to name lines in it.

    Raises:
        ConfigError: As `load_config`.
    """
    file = os.fspath(path)
    document = parse(_read(file), file, environ)
    config, invalid = _validate(document.value)
    invalid = [finding for finding in invalid if not document.is_unreadable(finding.path)]
    problems = _in_line_order(document, [*document.findings, *invalid])
    if problems or config is None:
        raise ConfigError(problems)
    return config, document


def load_keys(path: str, environ: Mapping[str, str]) -> tuple[KeyConfig, ...]:
    """Read a file of API keys: a mapping with the one key `keys`.

    Raises:
        ConfigError: As `load_config`.
    """
    document = parse(_read(path), path, environ)
    found: list[Finding] = list(document.findings)
    try:
        keys = KeysFile.model_validate(document.value).keys
    except ValidationError as error:
        invalid = findings_of(error, KeysFile)
        found += [finding for finding in invalid if not document.is_unreadable(finding.path)]
        keys = ()
    if found:
        raise ConfigError(_in_line_order(document, found))
    return keys


def config_from_flags(
    replica_urls: Sequence[str],
    tokenizer: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    policy: str | None = None,
) -> GatewayConfig:
    """Make the configuration of `warmroute serve --replica A --replica B`.

    Its one model has no name: names and block size are read from the replicas.

    Args:
        replica_urls: Values of `--replica`, at least one.
        tokenizer: Local folder or hub id.
        host: Address that the public listener binds; None for the default.
        port: Port of the public listener; None for the default.
        admin_port: Port of the admin listener; None for the default.
        policy: Kind of the only policy; None for the default.

    Raises:
        ConfigError: With the flags in place of keys.
    """
    values = {
        "models": [{"replicas": [{"url": url} for url in replica_urls], "tokenizer": tokenizer}],
        "listen": _given(host=host, port=port),
        "admin": _given(port=admin_port),
        "policies": {DEFAULT_POLICY: {"kind": policy}} if policy is not None else {},
    }
    config, invalid = _validate(values)
    if config is None or invalid:
        raise ConfigError([_flag_problem(finding, values) for finding in invalid])
    return config


def _read(file: str) -> str:
    try:
        data = FilePath(file).read_bytes()
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        what = f"cannot be read: {reason}, give the path of a readable YAML file"
        raise ConfigError([Problem(f"{file}:1", "(file)", what)]) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = "not UTF-8 text, save the file as UTF-8"
        raise ConfigError([Problem(f"{file}:{line}", "(file)", what)]) from None


def _validate(values: Any) -> tuple[GatewayConfig | None, list[Finding]]:
    # Across keys the values are checked as written: a wrong key must not hide a wrong reference.
    across = cross_findings(values)
    try:
        return GatewayConfig.model_validate(values), across
    except ValidationError as error:
        return None, [*findings_of(error), *across]


def _in_line_order(document: Document, findings: Iterable[Finding]) -> list[Problem]:
    unique = dict.fromkeys(document.problem(finding) for finding in findings)
    return sorted(unique, key=lambda problem: int(problem.source.rpartition(":")[2]))


def _given(**flags: Any) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


_FLAG_BY_KEY = (
    (("listen", "host"), "--host"),
    (("listen", "port"), "--port"),
    (("admin", "port"), "--admin-port"),
    (("policies",), "--policy"),
    (("models", 0, "tokenizer"), "--tokenizer"),
)


def _flag_problem(finding: Finding, values: Any) -> Problem:
    flags = (flag for key, flag in _FLAG_BY_KEY if finding.path[: len(key)] == key)
    return Problem(
        "", next(flags, "--replica"), finding.text + _got(finding, values) + finding.hint
    )


def _got(finding: Finding, values: Any) -> str:
    value, path = values, finding.path
    try:
        for step in path:
            value = value[step]
    except (KeyError, TypeError):  # a default, or missing
        return ""
    return f", got {shown_value(value)}" if finding.show_value else ""
