"""What a forked simulator runs. Its imports are done once, in the server that forks."""

import os
import sys
import warnings
from multiprocessing.connection import Connection

from loadtests.simulator.__main__ import main

# As that program does before it imports the rest.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from transformers import AutoTokenizer  # noqa: F401 - a second that each fork saves

import loadtests.simulator.server  # noqa: F401 - half a second more


def simulate(arguments: tuple[str, ...], told: Connection) -> None:
    """Run `python -m loadtests.simulator` whose standard output is `told`."""
    warnings.simplefilter("error", ResourceWarning)
    os.dup2(told.fileno(), sys.stdout.fileno())
    sys.exit(main(("--port", "0", *arguments)))
