"""`make measure-tiers`: what L2 is worth, against what was published of it."""

import sys

from loadtests.tiers.program import main

sys.exit(main())
