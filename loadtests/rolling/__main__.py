"""`python -m loadtests.rolling`."""

import sys

from loadtests.rolling.program import main

sys.exit(main())
