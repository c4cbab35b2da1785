"""Replicas and gateways come and go under traffic, and nobody notices (`make measure-rolling`)."""
