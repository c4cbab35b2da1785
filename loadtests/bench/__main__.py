"""`python -m loadtests.bench`."""

import sys

from loadtests.bench.program import main

sys.exit(main())
