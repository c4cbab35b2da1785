"""Engine profiles from files, for machines that routing.lab does not name."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from routing.lab.engine_profile import PROFILES, REFERENCE, EngineProfile


class ProfileError(ValueError):
    """A profile that is neither a known name nor a usable file; the message says what is wrong."""


def load_profile(name_or_file: str) -> EngineProfile:
    """Return the profile of this name, or the one in a YAML or JSON file.

    A file states all fields of EngineProfile, or `base: NAME` and those that differ from it:

        base: reference
        name: half the memory
        l0_tokens: 205000
        step: {base_s: 0.010}

    Raises:
        ProfileError: There is no such profile, or the file does not hold one.
    """
    if name_or_file in PROFILES:
        return PROFILES[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        known = ", ".join(sorted(PROFILES))
        raise ProfileError(f"profile {name_or_file!r} is neither a file nor one of {known}")
    try:
        # JSON is YAML.
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ProfileError(f"{path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ProfileError(f"{path}: a profile is a mapping, not {type(data).__name__}")
    try:
        return _build(data)
    except msgspec.ValidationError as error:
        raise ProfileError(f"{path}: {error}") from None


def _build(data: dict[str, Any]) -> EngineProfile:
    base_name = data.pop("base", None)
    _check(data, msgspec.to_builtins(REFERENCE))
    if base_name is None:
        return msgspec.convert(data, EngineProfile)
    if base_name not in PROFILES:
        raise msgspec.ValidationError(f"unknown base {base_name!r}")
    return msgspec.convert(
        _merge(msgspec.to_builtins(PROFILES[base_name]), data), type=EngineProfile
    )


def _check(data: dict[str, Any], known: dict[str, Any]) -> None:
    """Refuse what msgspec lets pass: keys that no profile has, and negative numbers."""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise msgspec.ValidationError(f"unknown keys {unknown}, known are {sorted(known)}")
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(known[key], dict):
            _check(value, known[key])
        elif isinstance(value, int | float) and value < 0:
            raise msgspec.ValidationError(f"{key} must not be negative, got {value}")


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if nested else value
    return merged
