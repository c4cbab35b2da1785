"""A vLLM-like server around routing.lab.engine_model: the replica that tests and the demo route to.

It answers as vLLM 0.32 does on the surfaces that a gateway uses, without a model: replies are made
of words, time and cache come from the engine model, driven by the wall clock.
"""
