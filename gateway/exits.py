"""Exit codes of the command `warmroute`."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
"""As argparse: the command or its configuration is wrong."""
