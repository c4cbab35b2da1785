"""The models that the gateway serves: their names, their replicas' prices, their policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from gateway.config.models import (
    ConsistentHashConfig,
    CostConfig,
    ExpectedTtftConfig,
    GatewayConfig,
    LeastLoadedConfig,
    ModelConfig,
    PolicyConfig,
    PowerOfTwoConfig,
    PrefixAffinityConfig,
    RoundRobinConfig,
    RuleConfig,
    SessionConfig,
)
from gateway.errors import ModelNotFound, NoEligibleReplica
from gateway.prompt.prepare import Preparer
from gateway.proxy.headers import Header, first
from gateway.replicas.registry import ServedModel
from routing.cost import CostModel
from routing.policies import (
    ConsistentHash,
    ExpectedTtft,
    LeastLoaded,
    Policy,
    PowerOfTwo,
    PrefixAffinity,
    RoundRobin,
    Session,
)
from routing.policies.expected_ttft import Profile
from routing.router import LoadBound, Router

# Where no consistent_hash policy says otherwise; see that policy's own description.
DEFAULT_AFFINITY_BLOCKS = 16
DEFAULT_SESSION_HEADER = "x-session-id"


@dataclass(frozen=True, slots=True)
class Route:
    """How one kind of request of one model is routed.

    Attributes:
        name: The policy's name in the configuration.
        router: Decides.
        affinity_blocks: Leading blocks that make the affinity key.
        session_header: Names the session, in lower case.
    """

    name: str
    router: Router
    affinity_blocks: int
    session_header: bytes


@dataclass(slots=True, eq=False)
class Model:
    """One pool of replicas that serve the same model.

    Attributes:
        key: Its identity in block keys, metrics and logs; never changes while we run.
        cost: Prices of its replicas.
        preparer: Renders and tokenizes its prompts.
        route_by_policy: Its routes by policy name.
        default_policy: For requests that no rule takes.
        names: What the configuration calls it; empty where its replicas have to tell.
        served: What its replicas said they serve, by name.
        num_routed: Requests routed so far.
    """

    key: str
    cost: CostModel
    preparer: Preparer
    route_by_policy: Mapping[str, Route]
    default_policy: str
    names: frozenset[str]
    served: dict[str, ServedModel] = field(default_factory=dict)
    num_routed: int = 0

    def lora(self, name: str) -> str:
        """Return the LoRA adapter that a model name asks for; empty for the base model."""
        served = self.served.get(name)
        return name if served is not None and served.parent is not None else ""


class Models:
    """Finds the model and the route of a request.

    Args:
        models: All models of the configuration.
        rules: In order; the first one that matches wins.
    """

    def __init__(self, models: Sequence[Model], rules: Sequence[RuleConfig]) -> None:
        self._models = models
        self._rules = rules
        self._model_by_name = {name: model for model in models for name in model.names}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def find(self, name: str) -> Model:
        """Return the model that a request names.

        Raises:
            ModelNotFound: Neither the configuration nor a replica knows the name.
            NoEligibleReplica: It cannot be said yet, as a model's replicas have to tell its name.
        """
        model = self._model_by_name.get(name)
        if model is not None:
            return model
        if any(not known.names and not known.served for known in self._models):
            raise NoEligibleReplica("No replica has told yet which model it serves.")
        names = ", ".join(sorted(self._model_by_name))
        message = f"The model `{name}` does not exist. Served models: {names}."
        raise ModelNotFound(message, param="model")

    def learn(self, model_key: str, served: Iterable[ServedModel]) -> None:
        """Note what a replica of a model says it serves; a configured name keeps its model."""
        model = next(m for m in self._models if m.key == model_key)
        for entry in served:
            model.served[entry.name] = entry
            self._model_by_name.setdefault(entry.name, model)

    def served(self) -> Mapping[str, ServedModel]:
        """Return what clients may ask for, by name: configured names, aliases and adapters."""
        found: dict[str, ServedModel] = {}
        for name, model in sorted(self._model_by_name.items()):
            base = next(iter(model.served.values()), ServedModel(name))
            found[name] = model.served.get(name, ServedModel(name, None, base.max_model_len))
        return found

    def route(self, model: Model, path: str, headers: Sequence[Header]) -> Route:
        """Return how a request is routed: by the first rule that matches, else by its model."""
        for rule in self._rules:
            if self._matches(rule, model, path, headers):
                return model.route_by_policy[rule.policy]
        return model.route_by_policy[model.default_policy]

    def _matches(
        self, rule: RuleConfig, model: Model, path: str, headers: Sequence[Header]
    ) -> bool:
        when = rule.when
        if when.model is not None and self._model_by_name.get(when.model) is not model:
            return False
        if when.path is not None and when.path != path:
            return False
        return all(
            first(headers, name.encode()) == value.encode() for name, value in when.headers.items()
        )


def build_model(config: GatewayConfig, model: ModelConfig, preparer: Preparer) -> Model:
    """Build one model of a configuration.

    Args:
        config: The whole configuration, for its policies.
        model: Which.
        preparer: Renders and tokenizes its prompts.
    """
    cost = build_cost(model.cost)
    routes = {name: _route(name, policy, cost) for name, policy in config.policies.items()}
    return Model(
        key=model_key(model),
        cost=cost,
        preparer=preparer,
        route_by_policy=routes,
        default_policy=model.policy or config.default_policy,
        names=frozenset({*model.aliases, *([model.name] if model.name else [])}),
    )


def model_key(model: ModelConfig) -> str:
    """Return a model's identity: its name, or a word for the one whose name replicas will tell."""
    return model.name or "default"


def build_cost(cost: CostConfig) -> CostModel:
    """Return the prices that a configuration states."""
    return CostModel(
        prefill_token_s=cost.prefill_token_s,
        prefill_pair_s=cost.prefill_pair_s,
        decode_sequence_s=cost.decode_sequence_s,
        decode_kv_token_s=cost.decode_kv_token_s,
        l1_latency_s=cost.l1_latency_s,
        l1_token_s=cost.l1_token_s,
        l2_latency_s=cost.l2_latency_s,
        l2_token_s=cost.l2_token_s,
    )


def _route(name: str, config: PolicyConfig, cost: CostModel) -> Route:
    bound = LoadBound()
    if not isinstance(config, RoundRobinConfig):
        bound = LoadBound(config.load_bound, config.slack)
    affinity_blocks, session_header = DEFAULT_AFFINITY_BLOCKS, DEFAULT_SESSION_HEADER
    if isinstance(config, ConsistentHashConfig):
        affinity_blocks = config.affinity_blocks
    if isinstance(config, SessionConfig):
        session_header = config.header
    router = Router(_policy(config, cost), bound)
    return Route(name, router, affinity_blocks, session_header.encode())


def _policy(config: PolicyConfig, cost: CostModel) -> Policy:  # noqa: PLR0911 - one row a kind
    match config:
        case ExpectedTtftConfig():
            return ExpectedTtft(
                cost=cost,
                profile=Profile(config.profile),
                prefill_weight=config.prefill_weight,
                decode_steps=config.decode_steps,
                fixed_s=config.fixed_s,
            )
        case PrefixAffinityConfig():
            return PrefixAffinity()
        case ConsistentHashConfig():
            return ConsistentHash()
        case PowerOfTwoConfig():
            return PowerOfTwo()
        case LeastLoadedConfig():
            return LeastLoaded()
        case SessionConfig():
            return Session()
        case RoundRobinConfig():
            return RoundRobin()
        case _:
            assert_never(config)
