"""What replicas say otherwise than the configuration, and than each other."""

from dataclasses import replace

import pytest

from gateway.kvevents.subscriber import Source
from gateway.proxy.transport import Origin
from gateway.replicas.contradictions import Usual, contradictions, usual
from gateway.replicas.facts import ReplicaFacts, ServedModel
from gateway.replicas.replica import Replica

SERVED = (ServedModel("m", None, 4096, "/weights"), ServedModel("adapter", "m"))
FACTS = ReplicaFacts(models=SERVED, block_size=16)
USUAL = Usual("/weights", 4096)
AT_5557, AT_6000 = Source("tcp://10.0.0.1:5557"), Source("tcp://10.0.0.1:6000")


def said(facts, **configured):
    replica = Replica("r", "m", "http://10.0.0.1:8000", Origin("10.0.0.1", 8000), **configured)
    replica.facts = facts
    return replica


def publishing(*sources):
    return replace(FACTS, kv_events=dict(enumerate(sources)), tells_events=True)


@pytest.mark.parametrize(
    ("replica", "names", "found", "why"),
    [
        (said(FACTS), {"m", "adapter"}, [], "all as configured"),
        (said(FACTS), {"m", "other"}, ["name"], "an adapter that nobody loaded"),
        (said(ReplicaFacts()), {"m"}, [], "it hides its models"),
        (said(FACTS, configured_block_size=16), {"m"}, [], "the same"),
        (said(FACTS, configured_block_size=32), {"m"}, ["block_size"], "another"),
        (said(ReplicaFacts(), configured_block_size=32), {"m"}, [], "it does not say"),
        (said(publishing(AT_5557), configured_events=AT_5557), {"m"}, [], "the same"),
        (
            said(publishing(AT_5557), configured_events=Source("tcp://engine-0:5557")),
            {"m"},
            [],
            "one host by name and by address",
        ),
        (said(publishing(AT_6000), configured_events=AT_5557), {"m"}, ["kv_events"], "a port"),
        (said(publishing(), configured_events=AT_5557), {"m"}, ["kv_events"], "none at all"),
        (said(FACTS, configured_events=AT_5557), {"m"}, [], "older than 0.31, it cannot say"),
        (
            said(
                publishing(Source("tcp://a:5557", topic="kv@a")),
                configured_events=Source("tcp://a:5557", topic="kv@b"),
            ),
            {"m"},
            ["kv_events"],
            "a topic that never comes",
        ),
        (
            said(
                publishing(Source("tcp://a:5557", topic="kv@a")),
                configured_events=Source("tcp://a:5557", topic="kv"),
            ),
            {"m"},
            [],
            "topics are prefixes",
        ),
        (
            said(publishing(AT_5557, AT_6000), configured_events=Source("tcp://a:5999"), rank=1),
            {"m"},
            [],
            "the second rank of what is configured for the first",
        ),
        (
            said(replace(FACTS, models=(ServedModel("m", None, 2048, "/old"),))),
            {"m"},
            ["model_root", "max_model_len"],
            "another version of the model",
        ),
    ],
)
def test_contradictions(replica, names, found, why):
    assert [c.fact for c in contradictions(replica, names, USUAL)] == found, why


def test_what_most_say_is_usual_and_of_equals_the_first():
    old = replace(FACTS, models=(ServedModel("m", None, 2048, "/old"),))
    assert usual([]) == Usual(None, None)
    assert usual([said(old), said(ReplicaFacts())]) == Usual("/old", 2048)
    assert usual([said(old), said(FACTS)]) == Usual("/old", 2048)
    assert usual([said(old), said(FACTS), said(FACTS)]) == USUAL


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            Source("tcp://a:5557", "tcp://a:5558", "t"),
            Source("tcp://a:5559", "tcp://a:5560", "t"),
        ),
        (Source("tcp://[fd00::1]:5557"), Source("tcp://[fd00::1]:5559")),
        (Source("ipc:///run/kv"), Source("ipc:///run/kv")),
    ],
)
def test_a_rank_publishes_at_the_next_port(source, expected):
    assert source.of_rank(2) == expected
