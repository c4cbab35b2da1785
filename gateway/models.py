"""The models that the gateway serves, the pools that serve them, and which of those a request gets.

A pool is one entry of the configuration's `models`. Most names have one pool, and then there is
nothing to choose; gateway/sharing.py draws where several serve the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.config.fleet import model_key
from gateway.config.models import GatewayConfig, ModelConfig, RuleConfig
from gateway.errors import ModelNotFound, NoEligibleReplica
from gateway.l2.base import SharedCache
from gateway.l2.host_memory import HostMemories
from gateway.prompt.verified import Prompts
from gateway.replicas.facts import ServedModel
from gateway.replicas.registry import Replica
from gateway.routes import Route, build_cost, build_routes
from gateway.rules import Rule, Wanted, build_rules
from routing.calibration import Calibrator, Observed
from routing.cost import CostModel
from routing.types import ReplicaId
from routing.value import value


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
        aliases: Those of `names` that may be LoRA adapters.
        weight: Its share of the requests for names that other pools serve too; 0 for none.
        forward_token_ids: Whether chats go to its engines with their token ids.
        short_cuts: Which short cuts its prompts are prepared by, in words of `PromptTokenizer`.
        served: What its replicas said they serve, by name.
        max_model_len: Tokens of prompt and answer together, as they said; the shortest is safe.
        num_routed: Requests routed so far.
        turn_by_policy: Of these, those routed by each policy: what turns round robin.
        shared: The pool that its replicas share; None for none.
        host: Their host memories, where they are modelled.
        calibrator: Learns its prices; None where they stay as configured.
        routes: Makes its routes anew, by prices.
    """

    key: str
    cost: CostModel
    preparer: Prompts
    route_by_policy: Mapping[str, Route]
    default_policy: str
    names: frozenset[str]
    aliases: frozenset[str] = frozenset()
    weight: float = 1.0
    forward_token_ids: bool = False
    short_cuts: Mapping[str, bool] = field(default_factory=dict)
    served: Mapping[str, ServedModel] = field(default_factory=dict)
    max_model_len: int | None = None
    num_routed: int = 0
    turn_by_policy: Counter[str] = field(default_factory=Counter)
    shared: SharedCache | None = None
    host: HostMemories | None = None
    calibrator: Calibrator | None = None
    routes: Callable[[CostModel], Mapping[str, Route]] | None = None
    _told: dict[ReplicaId, Sequence[ServedModel]] = field(default_factory=dict)

    def lora(self, name: str) -> str:
        """Return the LoRA adapter that a model name asks for; empty for the base model."""
        served = self.served.get(name)
        if served is not None:
            return name if served.parent is not None else ""
        # Replicas list every name of their base model. An alias that none of them lists is an
        # adapter that engines load on demand, and must not share the base model's block keys.
        return name if self.served and name in self.aliases else ""

    def able(self, replicas: list[Replica], name: str) -> list[Replica]:
        """Return those of its replicas that can answer requests for a name.

        For the base model all can, and for an adapter that nobody has loaded all may. Else those
        can that list it, and those that list nothing, as they may have it.
        """
        served = self.served.get(name)
        if served is None or served.parent is None:
            return replicas
        return [replica for replica in replicas if self._may_have(replica.replica_id, name)]

    def _may_have(self, replica_id: ReplicaId, name: str) -> bool:
        told = self._told.get(replica_id)
        return told is None or any(entry.name == name for entry in told)

    def learn(self, replica_id: ReplicaId, told: Sequence[ServedModel]) -> bool:
        """Note what a replica says it serves now, and return whether that is news.

        A replica that lists nothing has said nothing: what it said before holds.
        """
        if not told or self._told.get(replica_id) == told:
            return False
        self._told[replica_id] = told
        self._unite()
        return True

    def observe(self, seen: Observed) -> None:
        """Learn from one answer; from the next request on, new prices are in force."""
        if self.calibrator is not None and self.calibrator.observe(seen):
            self._reprice(self.calibrator.cost)

    def _reprice(self, cost: CostModel) -> None:
        self.cost = cost
        if self.routes is not None:
            self.route_by_policy = self.routes(cost)

    def inherit(self, before: Model) -> None:
        """Take over what the same pool has learned under the configuration before."""
        self.num_routed = before.num_routed
        kept = before.turn_by_policy.keys() & self.route_by_policy.keys()
        self.turn_by_policy = Counter({name: before.turn_by_policy[name] for name in kept})
        self._told = before._told
        mine, theirs = self.calibrator, before.calibrator
        if mine is not None and theirs is not None and mine.prior == theirs.prior:
            self.calibrator = theirs
            self._reprice(theirs.cost)
        self._unite()

    def forget(self, replica_id: ReplicaId) -> bool:
        """Forget what a replica that is gone has said, and return whether that was anything."""
        known = self._told.pop(replica_id, None) is not None
        if known:
            self._unite()
        return known

    def _unite(self) -> None:
        served: dict[str, ServedModel] = {}
        for told in self._told.values():
            for entry in told:
                served.setdefault(entry.name, entry)
        self.served = served
        lengths = (entry.max_model_len for entry in served.values() if entry.max_model_len)
        self.max_model_len = min(lengths, default=None)


@value
class Offer:
    """Where a request may go, before a pool is drawn.

    Attributes:
        name: What the request calls the model or the adapter.
        pools: All that serve the name, in the order of the file.
        open: Those that may take it, at least one; several share such requests by their weights.
        rule: The rule that took it, or None.
    """

    name: str
    pools: tuple[Model, ...]
    open: tuple[Model, ...]
    rule: Rule | None

    def route(self, pool: Model) -> Route:
        """Return how the request is routed in one of the pools."""
        policy = self.rule.policy if self.rule is not None else None
        return pool.route_by_policy[policy or pool.default_policy]


@value
class Choice:
    """The pool and the route that a request got, and why.

    Attributes:
        offer: What there was to choose from.
        model: The pool.
        route: How its replica is chosen.
        passed_over: The pool whose turn it was, had one of its replicas been ready.
    """

    offer: Offer
    model: Model
    route: Route
    passed_over: Model | None = None

    @property
    def rule(self) -> str | None:
        """The rule that took the request, by its name or place; None where none did."""
        return None if self.offer.rule is None else self.offer.rule.label


class Models:
    """Finds the pools and the route of a request.

    Args:
        models: All pools of the configuration.
        rules: In order; the first one that matches wins.
    """

    def __init__(self, models: Sequence[Model], rules: Sequence[RuleConfig]) -> None:
        self._models = models
        self._rules = build_rules(rules)
        self._model_by_key = {model.key: model for model in models}
        self._configured = frozenset[str]().union(*(model.names for model in models))
        self._offer_by_name: dict[str, Offer] = {}
        self._index()

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def offer(self, wanted: Wanted) -> Offer:
        """Return where a request may go.

        Raises:
            ModelNotFound: Neither the configuration nor a replica knows the name, or its pools
                take only what rules send, and none sent this request.
            NoEligibleReplica: It cannot be said yet, as a model's replicas have to tell its name.
        """
        offer = self._offer_by_name.get(wanted.name)
        if offer is None:
            raise self._unknown(wanted.name)
        rule = self._rule(wanted, offer.pools) if self._rules else None
        if rule is not None:
            takes = offer.open if rule.pool is None else (self._model_by_key[rule.pool],)
            offer = Offer(offer.name, offer.pools, takes, rule)
        if not offer.open:
            raise self._unknown(wanted.name)
        return offer

    def _rule(self, wanted: Wanted, pools: Sequence[Model]) -> Rule | None:
        is_adapter = any(pool.lora(wanted.name) for pool in pools)
        keys = [pool.key for pool in pools]
        for rule in self._rules:
            if rule.pool is not None and rule.pool not in keys:
                continue  # its pool does not serve the name
            if rule.matches(wanted, is_adapter=is_adapter):
                return rule
        return None

    def _unknown(self, name: str) -> ModelNotFound | NoEligibleReplica:
        if any(not model.names and not model.served for model in self._models):
            return NoEligibleReplica("No replica has told yet which model it serves.")
        open_names = (known for known, offer in self._offer_by_name.items() if offer.open)
        names = ", ".join(sorted(open_names))
        message = f"The model `{name}` does not exist. Served models: {names}."
        return ModelNotFound(message, param="model")

    def inherit(self, before: Models) -> None:
        """Take over what pools of the same key know from running: a reload keeps it."""
        for model in self._models:
            old = before._model_by_key.get(model.key)
            if old is not None:
                model.inherit(old)
        self._index()

    def __getitem__(self, key: str) -> Model:
        return self._model_by_key[key]

    def learn(self, replica: Replica) -> None:
        """Note what a replica says it serves; a configured name keeps its pools."""
        if self._model_by_key[replica.model_key].learn(replica.replica_id, replica.facts.models):
            self._index()

    def forget(self, replica: Replica) -> None:
        """Forget what a replica that is gone has said."""
        if self._model_by_key[replica.model_key].forget(replica.replica_id):
            self._index()

    def _index(self) -> None:
        """Work out what every name offers where no rule decides, so that no request has to."""
        pools_by_name: dict[str, list[Model]] = {}
        for model in self._models:
            for name in model.names | (model.served.keys() - self._configured):
                pools_by_name.setdefault(name, []).append(model)
        self._offer_by_name = {
            name: Offer(name, tuple(pools), tuple(pool for pool in pools if pool.weight > 0), None)
            for name, pools in pools_by_name.items()
        }

    def served(self) -> Mapping[str, ServedModel]:
        """Return what clients may ask for, by name: configured names, aliases and adapters."""
        found = sorted(self._offer_by_name.items())
        return {name: _told_of(name, offer.pools) for name, offer in found}


def _told_of(name: str, pools: Iterable[Model]) -> ServedModel:
    """Return what there is to tell about a name; of several lengths the shortest is safe."""
    told = [pool.served[name] for pool in pools if name in pool.served]
    bases = [entry for pool in pools for entry in list(pool.served.values())[:1]]
    lengths = [e.max_model_len for e in told or bases if e.max_model_len is not None]
    parent = next((entry.parent for entry in told), None)
    return ServedModel(name, parent, min(lengths, default=None))


def build_model(config: GatewayConfig, model: ModelConfig, preparer: Prompts) -> Model:
    """Build one model of a configuration.

    Args:
        config: The whole configuration, for its policies.
        model: Which.
        preparer: Renders and tokenizes its prompts.
    """
    cost = build_cost(model.cost)
    return Model(
        key=model_key(model),
        cost=cost,
        preparer=preparer,
        route_by_policy=build_routes(config.policies, cost),
        calibrator=Calibrator(cost) if model.calibrate else None,
        routes=partial(build_routes, config.policies),
        default_policy=model.policy or config.default_policy,
        names=frozenset({*model.aliases, *([model.name] if model.name else [])}),
        aliases=frozenset(model.aliases),
        weight=model.weight,
        forward_token_ids=model.forward_token_ids,
    )
