"""Programs that put load on a gateway, and the simulated replicas behind it."""
