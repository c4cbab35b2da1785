"""What the configuration says by default is what routing/ does by default."""

from __future__ import annotations

from dataclasses import asdict

from gateway.config.fleet import COST_PROFILES
from gateway.config.models import ConsistentHashConfig, ExpectedTtftConfig, PolicyConfig
from gateway.config.policies import BoundedPolicy
from gateway.config.schema import members, words
from routing.cost import CostModel
from routing.policies import POLICIES, ExpectedTtft
from routing.router import LoadBound


def test_every_policy_can_be_configured() -> None:
    assert set(words(PolicyConfig)) == set(POLICIES)


def test_the_policies_with_a_bound_are_those_that_the_router_bounds() -> None:
    bounded = {
        words(member)[0] for member in members(PolicyConfig) if issubclass(member, BoundedPolicy)
    }
    assert bounded == {kind for kind, policy in POLICIES.items() if policy.bounded}


def test_the_bound_is_the_same() -> None:
    config = ConsistentHashConfig(kind="consistent_hash")
    assert LoadBound(config.load_bound, config.slack) == LoadBound()


def test_expected_ttft_is_the_same() -> None:
    config = ExpectedTtftConfig(kind="expected_ttft")
    given = config.model_dump(include={"profile", "prefill_weight", "decode_steps", "fixed_s"})
    default = asdict(ExpectedTtft())
    assert given == {key: default[key] for key in given}


def test_the_reference_costs_are_the_same() -> None:
    costs = COST_PROFILES["reference"]
    assert asdict(CostModel()).items() <= dict(costs).items()
