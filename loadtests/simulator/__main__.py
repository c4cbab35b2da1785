"""Start one simulated replica: python -m loadtests.simulator --port 0."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; return the exit status."""
    # Must be set before transformers is imported: it warns that there is no PyTorch, and one
    # encoding at a time needs no thread pool of its own.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from loadtests.simulator.options import parse_options  # noqa: PLC0415 - see above
    from loadtests.simulator.server import StartError, run  # noqa: PLC0415 - see above

    try:
        run(parse_options(arguments))
    except StartError as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
