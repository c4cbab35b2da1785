"""What single EndpointSlices and Pods mean, and what a collection of them adds up to."""

import json

import pytest

from gateway.replicas.discovery.base import Found
from gateway.replicas.discovery.kubernetes_collection import (
    ENDPOINT_SLICES,
    PODS,
    Collection,
    refusal,
)
from gateway.replicas.discovery.kubernetes_objects import ApiFault, read_pod, read_slice


def encoded(one):
    return json.dumps(one).encode()


def a_slice(*endpoints, ports=(("http", 8000),), name="s", **changes):
    ports = [{"name": n, "port": p, "protocol": "TCP"} for n, p in ports]
    return {"metadata": {"name": name}, "endpoints": endpoints, "ports": ports, **changes}


def an_endpoint(*addresses, pod="a", uid="", **conditions):
    reference = {"kind": "Pod", "name": pod, "uid": uid or f"uid-of-{pod}"}
    return {"addresses": addresses, "conditions": conditions, "targetRef": reference}


def a_pod(name="a", ip="10.0.0.1", ready="True", phase="Running", **metadata):
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", **metadata},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": phase,
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def collected(resource, *objects, ports=("http",), scheme="http"):
    collection = Collection(resource, ports, scheme)
    collection.replace(encoded({"metadata": {"resourceVersion": "7"}, "items": objects}))
    return collection


def seen(resource, *objects, **options):
    return collected(resource, *objects, **options).snapshot()


# Conditions of an endpoint, and whether it may get requests.
CONDITIONS = [
    ({}, True, "what is not said counts as ready"),
    ({"ready": None, "serving": None, "terminating": None}, True, "and so does null"),
    ({"ready": True, "serving": True, "terminating": False}, True, "ready"),
    ({"ready": False, "serving": False, "terminating": False}, False, "fails its probe"),
    ({"ready": False, "serving": True, "terminating": True}, False, "terminating, still serves"),
    ({"ready": True, "serving": True, "terminating": True}, False, "publishNotReadyAddresses"),
    ({"ready": True, "serving": False, "terminating": False}, True, "publishNotReadyAddresses"),
]


@pytest.mark.parametrize(("conditions", "ready", "why"), CONDITIONS)
def test_an_endpoint_is_ready(conditions, ready, why):
    one = a_slice(an_endpoint("10.0.0.1", **conditions))
    assert [a.ready for a in read_slice(encoded(one), ["http"]).addresses] == [ready], why


PODS_AND_READY = [
    (a_pod(), [True]),
    (a_pod(ready="False"), [False]),
    (a_pod(ready="Unknown"), [False]),
    (a_pod(deletionTimestamp="2026-01-01T00:00:00Z"), [False]),
    (a_pod(ip=None, phase="Pending"), []),
    (a_pod(ip="", phase="Pending"), []),
    (a_pod(phase="Succeeded"), []),
    (a_pod(phase="Failed"), []),
    ({"metadata": {"name": "a"}, "status": {"podIP": "10.0.0.1"}}, []),
]


@pytest.mark.parametrize(("pod", "ready"), PODS_AND_READY)
def test_a_pod_is_ready(pod, ready):
    assert [a.ready for a in read_pod(encoded(pod), ["http"]).addresses] == ready


def test_only_the_first_address_of_an_endpoint_counts():
    one = a_slice(an_endpoint("10.0.0.1", "10.0.0.2"))
    assert seen(ENDPOINT_SLICES, one) == {Found("http://10.0.0.1:8000", "a")}


def test_an_endpoint_without_a_pod_goes_by_its_host_name_or_by_none():
    one = a_slice({"addresses": ["10.0.0.1"], "hostname": "gpu-1"}, {"addresses": ["10.0.0.2"]})
    assert seen(ENDPOINT_SLICES, one) == {
        Found("http://10.0.0.1:8000", "gpu-1"),
        Found("http://10.0.0.2:8000", ""),
    }


@pytest.mark.parametrize(("choice", "port"), [("http", 8000), (8000, 8000), ("metrics", 9400)])
def test_a_port_of_a_slice_by_name_or_number(choice, port):
    one = a_slice(an_endpoint("10.0.0.1"), ports=(("metrics", 9400), ("http", 8000)))
    assert seen(ENDPOINT_SLICES, one, ports=[choice]) == {Found(f"http://10.0.0.1:{port}", "a")}


def test_a_port_of_a_pod_by_its_number_need_not_be_declared():
    assert seen(PODS, a_pod(), ports=[8080]) == {Found("http://10.0.0.1:8080", "a")}


def test_a_port_of_a_pod_by_name_is_looked_for_in_all_containers_and_sidecars():
    pod = a_pod()
    pod["spec"] = {
        "containers": [{"name": "proxy"}, {"ports": [{"name": "http", "containerPort": 8000}]}],
        "initContainers": [
            {"ports": [{"name": "loader", "containerPort": 1}]},
            {"restartPolicy": "Always", "ports": [{"name": "auth", "containerPort": 9000}]},
        ],
    }
    assert seen(PODS, pod) == {Found("http://10.0.0.1:8000", "a")}
    assert seen(PODS, pod, ports=["auth"]) == {Found("http://10.0.0.1:9000", "a")}
    assert seen(PODS, pod, ports=["loader"]) == frozenset()


def test_udp_is_no_port_of_a_replica():
    one = a_slice(an_endpoint("10.0.0.1"))
    one["ports"] = [{"name": "http", "port": 8000, "protocol": "UDP"}]
    assert seen(ENDPOINT_SLICES, one) == frozenset()


def test_with_several_ports_each_is_a_replica_with_its_own_name():
    ports = (("dp-0", 8000), ("dp-1", 8001), ("metrics", 9400))
    found = {Found("http://10.0.0.1:8000", "a:dp-0"), Found("http://10.0.0.1:8001", "a:dp-1")}
    one = a_slice(an_endpoint("10.0.0.1"), ports=ports)
    assert seen(ENDPOINT_SLICES, one, ports=["dp-0", "dp-1"]) == found
    pod = a_pod()
    declared = [{"name": name, "containerPort": number} for name, number in ports]
    pod["spec"]["containers"][0]["ports"] = declared
    assert seen(PODS, pod, ports=["dp-0", "dp-1"]) == found


def test_slices_are_merged_and_an_endpoint_in_two_is_one_replica():
    first = a_slice(an_endpoint("10.0.0.1"), an_endpoint("10.0.0.2", pod="b"), name="1")
    second = a_slice(an_endpoint("10.0.0.2", pod="b"), an_endpoint("10.0.0.3", pod="c"), name="2")
    assert seen(ENDPOINT_SLICES, first, second) == {
        Found("http://10.0.0.1:8000", "a"),
        Found("http://10.0.0.2:8000", "b"),
        Found("http://10.0.0.3:8000", "c"),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_copies_the_one_that_is_not_ready_is_believed(order):
    copies = [
        a_slice(an_endpoint("10.0.0.1", ready=ready), name=str(ready)) for ready in (0 > 1, 1 > 0)
    ]
    found = {Found("http://10.0.0.1:8000", "a", ready=False)}
    assert seen(ENDPOINT_SLICES, *copies[::order]) == found


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_in_slices_of_both_families_is_one_replica_by_ipv4(order):
    families = [
        a_slice(an_endpoint("10.0.0.1"), name="4", addressType="IPv4"),
        a_slice(an_endpoint("fd00::1"), name="6", addressType="IPv6"),
    ]
    assert seen(ENDPOINT_SLICES, *families[::order]) == {Found("http://10.0.0.1:8000", "a")}


def test_ipv6_and_https_make_a_url():
    one = a_slice(an_endpoint("fd00::1"), ports=(("http", 443),))
    assert seen(ENDPOINT_SLICES, one, scheme="https") == {Found("https://[fd00::1]", "a")}


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_that_ends_and_its_namesake_are_two(order):
    pods = [
        an_endpoint("10.0.0.1", uid="old", ready=False, terminating=True),
        an_endpoint("10.0.0.2", uid="new", ready=True),
    ]
    assert seen(ENDPOINT_SLICES, a_slice(*pods[::order])) == {
        Found("http://10.0.0.1:8000", "a", ready=False),
        Found("http://10.0.0.2:8000", "a"),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_an_address_in_two_pods_is_that_of_the_ready_one(order):
    pods = [a_pod("a", deletionTimestamp="2026-01-01T00:00:00Z"), a_pod("b")]
    assert seen(PODS, *pods[::order]) == {Found("http://10.0.0.1:8000", "b")}


def test_an_address_that_no_url_can_hold_is_left_out():
    one = a_slice(an_endpoint("10.0.0.1/"), an_endpoint("10.0.0.2", pod="b"))
    assert seen(ENDPOINT_SLICES, one) == {Found("http://10.0.0.2:8000", "b")}


def test_a_list_without_items_is_empty():
    assert seen(PODS) == frozenset()
    collection = Collection(PODS, ["http"], "http")
    collection.replace(b'{"metadata":{"resourceVersion":"7"},"items":null}')
    assert collection.snapshot() == frozenset()


PROBLEMS = [
    (ENDPOINT_SLICES, [], "no EndpointSlice: there is no such Service, or it has no selector"),
    (ENDPOINT_SLICES, [a_slice()], None),
    (PODS, [], None),
    (ENDPOINT_SLICES, [a_slice(an_endpoint("10.0.0.1"))], None),
    (
        ENDPOINT_SLICES,
        [a_slice(an_endpoint("10.0.0.1"), ports=(("grpc", 9000), ("metrics", 9400)))],
        "EndpointSlice s has no port http; it has grpc (9000), metrics (9400)",
    ),
    (
        PODS,
        [a_pod(), {**a_pod("b"), "spec": {"containers": [{}]}}],
        "pod b has no port http; it has none",
    ),
]


@pytest.mark.parametrize(("resource", "objects", "problem"), PROBLEMS)
def test_what_looks_wrong_is_told(resource, objects, problem):
    assert collected(resource, *objects).problem == problem


def test_events_change_what_the_list_gave():
    collection = collected(PODS, a_pod("a"))
    steps = [
        ("ADDED", a_pod("b", "10.0.0.2", resourceVersion="8"), {"a", "b"}),
        ("MODIFIED", a_pod("a", ip="", resourceVersion="9"), {"b"}),
        ("BOOKMARK", {"metadata": {"resourceVersion": "20"}, "spec": {"containers": None}}, {"b"}),
        ("DELETED", a_pod("b", resourceVersion="21"), set()),
        ("DELETED", a_pod("never-seen", resourceVersion="22"), set()),
    ]
    for kind, one, names in steps:
        collection.apply(encoded({"type": kind, "object": one}))
        assert {found.name for found in collection.snapshot()} == names
        assert collection.version == one["metadata"]["resourceVersion"]


GONE = {"kind": "Status", "code": 410, "message": "too old resource version: 1 (2)"}


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        (encoded({"type": "ERROR", "object": GONE}), 410, "too old resource version: 1 (2)"),
        (encoded({"type": "ERROR", "object": {}}), None, "no reason given"),
        (encoded({"type": "SYNC", "object": a_pod()}), None, "unknown type 'SYNC'"),
        (b'{"type":"ADDED","obj', None, "what we cannot read"),
        (b'{"type":"ADDED","object":{"metadata":{"name":3}}}', None, "what we cannot read"),
        (b"<html>", None, "what we cannot read"),
    ],
)
def test_an_event_that_is_none_is_a_fault_and_changes_nothing(line, status, says):
    collection = collected(PODS, a_pod())
    before = collection.snapshot()
    with pytest.raises(ApiFault, match=says.replace("(", r"\(").replace(")", r"\)")) as caught:
        collection.apply(line)
    assert caught.value.status == status
    assert (collection.snapshot(), collection.version) == (before, "7")


def test_an_answer_that_is_no_list_is_a_fault_and_changes_nothing():
    collection = collected(PODS, a_pod())
    for data in (b"", b"[]", b'{"metadata":{},"items":[{}]}'):
        with pytest.raises(ApiFault, match="what we cannot read"):
            collection.replace(data)
    assert collection.snapshot() == {Found("http://10.0.0.1:8000", "a")}


def test_a_refusal_for_want_of_rights_names_the_rule():
    body = encoded({"message": 'User "system:serviceaccount:gw:warmroute" cannot list resource'})
    text = refusal("list", ENDPOINT_SLICES, "serving", 403, body)
    assert "forbids list of endpointslices in namespace serving (403: User" in text
    assert (
        'with the rule {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], '
        "verbs: [list, watch]}" in text
    )
    core = refusal("watch", PODS, "serving", 403, b"<html>")
    assert 'apiGroups: [""], resources: ["pods"]' in core
    assert "no reason given" in core


def test_a_refusal_is_one_line_of_bounded_length():
    text = refusal("list", PODS, "serving", 500, encoded({"message": "a\nb " * 1000}))
    assert "\n" not in text
    assert len(text) < 500
