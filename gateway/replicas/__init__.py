"""Replicas: who they are, how they are, what they hold."""
