"""The hub that tokenizers come from by their ids, and what to say where one cannot be had.

The hub's client tries for every file by itself, six times: a hub that is away would hold the start
up for minutes. So it is asked once, and where it does not answer, what is in the cache has to do.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, get_session, is_offline_mode

from gateway.threads import run_apart

# For one answer. A connection whose first two packets are lost takes 3 s.
ASK_TIMEOUT_S = 5.0
# Of what a library says, in a log line.
_MAX_REASON_CHARS = 200
# Source: the hub's own check of repository names, as far as it tells them from paths.
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?", re.ASCII)


def is_hub_id(source: str) -> bool:
    """Return whether a tokenizer's name stands for files on the hub, and for no folder here."""
    return _HUB_ID.fullmatch(source) is not None and not Path(source).is_dir()


async def hub_answers() -> bool:
    """Ask the hub whether it is there; False at once where HF_HUB_OFFLINE is set."""
    if is_offline_mode():
        return False
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):  # a name server has no deadline of its own
            return await run_apart(_answers, "hub")
    except TimeoutError:
        return False


def _answers() -> bool:
    try:
        answer = get_session().head(constants.ENDPOINT, timeout=ASK_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - of the client's library, which is not always the same
        return False
    return answer.status_code < 500  # a proxy says so of a hub that is behind it


def why_not(source: str, files: str, error: Exception, *, offline: bool) -> str:
    """Return why a tokenizer cannot be loaded, and what to do about it.

    Args:
        source: A folder or the id of a model on the hub.
        files: What has to be in a folder.
        error: What its library said.
        offline: The hub was not asked, as it does not answer.
    """
    said = (str(error).strip() or type(error).__name__).splitlines()[0][:_MAX_REASON_CHARS]
    start = f"tokenizer {source!r} cannot be loaded: "
    if offline and is_hub_id(source):
        off = "is not asked (HF_HUB_OFFLINE)" if is_offline_mode() else "does not answer"
        hub = urlsplit(constants.ENDPOINT).hostname
        return (
            f"{start}the hub {hub} {off}, and {constants.HF_HUB_CACHE} has no copy of it: mount a "
            f"folder with {files} and name that, or mount a filled cache at HF_HOME and set "
            f"HF_HUB_OFFLINE=1 ({said})"
        )
    if not Path(source).exists() and not is_hub_id(source):
        return f"{start}there is no such folder: mount one with {files}"
    return f"{start}give a folder with {files}, or the id of a model on the hub ({said})"
