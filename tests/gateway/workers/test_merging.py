"""One answer of the admin API from several workers' answers."""

from gateway.workers.merging import merged


def replica(name="a", in_flight=0, state="ready", **more):
    return {
        "id": name,
        "state": state,
        "in_flight": in_flight,
        "outstanding_prefill_s": 0.5 * in_flight,
        "drained": state == "draining" and in_flight == 0,
        "follows_events": False,
        "weight": 1.0,
        **more,
    }


def test_what_is_in_flight_adds_up():
    told = merged([{"replicas": [replica("a", 1), replica("b", 2)], "gone": []},
                   {"replicas": [replica("b", 3), replica("a", 4)], "gone": []}])  # fmt: skip
    assert [(one["id"], one["in_flight"]) for one in told["replicas"]] == [("a", 5), ("b", 5)]
    assert told["replicas"][0]["outstanding_prefill_s"] == 2.5


def test_a_replica_that_only_one_worker_has_found_is_told():
    told = merged([{"replicas": [replica("a")]}, {"replicas": [replica("a"), replica("b")]}])
    assert [one["id"] for one in told["replicas"]] == ["a", "b"]


def test_a_replica_is_drained_when_it_is_for_all():
    still, done = replica(state="draining", in_flight=1), replica(state="draining")
    assert merged([done, still])["drained"] is False
    assert merged([done, done])["drained"] is True


def test_events_are_followed_by_whoever_has_the_stream():
    told = merged([replica(), replica(follows_events=True)])
    assert told["follows_events"] is True


def test_the_status_adds_up_and_its_skew_is_that_of_all():
    def status(a, b):
        model = {
            "key": "m",
            "routed": a + b,
            "skew": 9.0,
            "replicas": [replica("a", a), replica("b", b)],
        }
        return {"models": [model], "index": {"L0": 10}}

    told = merged([status(4, 0), status(0, 2)])
    assert told["index"] == {"L0": 20}
    [model] = told["models"]
    assert (model["routed"], model["skew"]) == (6, 1.333)


def test_weights_count_in_the_skew():
    def status(a, b):
        replicas = [replica("a", a, weight=3.0), replica("b", b), replica("c", 9, "cordoned")]
        return {"models": [{"key": "m", "routed": 0, "skew": 0, "replicas": replicas}], "index": {}}

    assert merged([status(2, 1), status(1, 0)])["models"][0]["skew"] == 1.0
    assert merged([status(0, 0)])["models"][0]["skew"] == 1.0


def test_a_reload_that_changed_something_anywhere_says_what():
    unchanged = {"result": "unchanged", "changes": [], "needs_restart": []}
    applied = {"result": "applied", "changes": ["x"], "needs_restart": []}
    told = merged([unchanged, applied])
    assert (told["result"], told["changes"]) == ("applied", ["x"])
    assert told["workers"] == ["unchanged", "applied"]


def test_what_was_forgotten_of_pools_adds_up():
    parts = [{"m": 3}, {"m": 4, "n": 1}]
    told = merged([{"tier": "L2", "flushed": part} for part in parts])
    assert told == {"tier": "L2", "flushed": {"m": 7, "n": 1}}
