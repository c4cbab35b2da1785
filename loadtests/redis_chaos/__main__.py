"""`python -m loadtests.redis_chaos`."""

import sys

from loadtests.redis_chaos.program import main

sys.exit(main())
