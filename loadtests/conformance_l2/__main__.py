"""`make conformance-l2`: two real replicas that share what they computed by LMCache."""

import sys

from loadtests.conformance_l2.program import main

sys.exit(main())
