"""deploy/curvine: the pool's values, its volume, and the janitor that keeps it."""

import yaml

from gateway.cli import _parser
from tests.support.charts import ROOT, assert_valid

FOLDER = ROOT / "deploy/curvine"
VALUES = yaml.safe_load((FOLDER / "values.yaml").read_text("utf-8"))
STORAGE, CLAIM = yaml.safe_load_all((FOLDER / "storage.yaml").read_text("utf-8"))
(JANITOR,) = yaml.safe_load_all((FOLDER / "janitor.yaml").read_text("utf-8"))

# Keys of the chart (curvine-helm at 0999721) and of the master's and the client's configuration
# (curvine at bff4e7d, 2026-08-21), with their types.
CHART = {"cluster", "master", "worker", "configOverrides", "image", "service", "config", "rbac"}
MASTER = {
    "enable_quota_eviction": bool,
    "quota_eviction_mode": str,
    "quota_eviction_policy": str,
    "quota_eviction_high_rate": float,
    "quota_eviction_low_rate": float,
    "quota_eviction_scan_page": int,
    "quota_eviction_dry_run": bool,
    "quota_eviction_capacity": int,
}
CLIENT = {"ttl_action": str, "ttl_ms": str}


def test_kubernetes_takes_volume_and_janitor():
    assert_valid([STORAGE, CLAIM, JANITOR])


def test_the_values_are_keys_that_the_chart_and_curvine_know():
    assert VALUES.keys() <= CHART
    for section, known in (("master", MASTER), ("client", CLIENT)):
        told = VALUES["configOverrides"][section]
        assert {key: type(text) for key, text in told.items()} == {key: known[key] for key in told}


def test_the_pool_evicts_by_itself():
    master = VALUES["configOverrides"]["master"]
    assert master["enable_quota_eviction"] is True
    assert master["quota_eviction_mode"] == "delete"
    assert master["quota_eviction_policy"] == "lru"
    assert 0 < master["quota_eviction_low_rate"] < master["quota_eviction_high_rate"] < 1
    # Files of a client with ttl_action none are never evicted.
    assert VALUES["configOverrides"]["client"]["ttl_action"] == "delete"
    assert STORAGE["parameters"]["client.ttl_action"] == "delete"


def test_a_restart_formats_nothing():
    assert set(VALUES["cluster"].values()) == {False}


def test_every_node_mounts_the_same_directory():
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    assert CLAIM["spec"]["storageClassName"] == STORAGE["metadata"]["name"]
    assert STORAGE["provisioner"] == "curvine"
    assert {"master-addrs", "fs-path", "path-type"} <= STORAGE["parameters"].keys()


def test_the_janitors_command_is_one_that_the_parser_takes():
    (container,) = JANITOR["spec"]["template"]["spec"]["containers"]
    words = [*container["command"][1:], *container["args"]]
    given = _parser().parse_args(words)
    assert given.delete
    assert given.max_bytes == 700 * 10**9
    assert given.interval == 60
    assert given.paths == [container["volumeMounts"][0]["mountPath"]]
    assert given.metrics_port == container["ports"][0]["containerPort"]
    # It has to come before the master's watermark, or it would never see a full pool.
    worker = VALUES["worker"]
    size = worker["storage"]["dataDirs"][0]["size"]
    assert size == "500Gi"
    capacity = worker["replicas"] * 500 * 2**30
    high = VALUES["configOverrides"]["master"]["quota_eviction_high_rate"]
    assert given.max_bytes < capacity * high
    volume = JANITOR["spec"]["template"]["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert JANITOR["metadata"]["namespace"] == CLAIM["metadata"]["namespace"]
