"""Several gateways as one: the same traffic through one and through four (`make measure-fleet`)."""
