"""`python -m loadtests.demo`."""

import sys

from loadtests.demo.program import main

sys.exit(main())
