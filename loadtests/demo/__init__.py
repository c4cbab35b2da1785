"""`make demo`: the same traffic under round_robin and under expected_ttft, seen by the client."""
