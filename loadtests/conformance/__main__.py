"""`make conformance`: two real vLLM replicas behind the gateway."""

import sys

from loadtests.conformance.program import main

sys.exit(main())
