"""Rules: which requests go by another policy, or to another pool, than their model says."""

from __future__ import annotations

from pydantic import Field

from gateway.config.fields import HeaderName, Label, Name, RequestPath, Section


class WhenConfig(Section):
    """What a request must be like for a rule to take it: all conditions, at least one."""

    model: Name | None = Field(
        None,
        description="The model's name or alias in the request, exactly: a rule for a name does not "
        "take the model's other names.",
    )
    lora: Name | None = Field(
        None,
        description="Name of a LoRA adapter in the request, exactly. It need not stand in this "
        "file, as replicas tell the adapters that they have.",
    )
    path: RequestPath | None = Field(
        None, description="Path of the request, exactly, such as /v1/completions."
    )
    headers: dict[HeaderName, Name] = Field(
        default_factory=dict,
        description="Header name to value; every one must be there with exactly this value. Names "
        "in any case.",
    )
    api_key: Label | None = Field(
        None,
        description="Name of the caller's API key, as in `auth`; never the key itself.",
    )


class RuleConfig(Section):
    """Sends some requests by a policy, or to a pool, of their own; the first that matches wins.

    A rule with a pool takes only requests for names that this pool serves; others go on to the
    next rule. Where every replica of its pool is out, its requests get 503: no other pool takes
    them, as the rule may be what keeps tenants apart.
    """

    name: Label | None = Field(
        None,
        description="Name in logs, explanations and response headers. Left out, it is the rule's "
        "place, such as `rules[0]`.",
    )
    when: WhenConfig = Field(
        description="Conditions, all of which must hold.", examples=["{path: /v1/completions}"]
    )
    policy: str | None = Field(
        None, description="Name of a policy. Left out, the pool's own holds; or give `pool`."
    )
    pool: str | None = Field(
        None,
        description="Name of a pool. Left out, the pools that serve the requested name share its "
        "requests by `weight`; or give `policy`.",
    )
