"""deploy/hyperpod: the operator's object, the gateway's values, and that the two fit together."""

import argparse
import io
import json
from pathlib import Path

import pytest
import yaml

from gateway.config.check import check_file
from gateway.config.load import load_config
from gateway.exits import EXIT_OK
from tests.support.charts import ROOT, assert_valid, charts, only

__all__ = ["charts"]

FOLDER = ROOT / "deploy/hyperpod"
ENDPOINT = yaml.safe_load((FOLDER / "endpoint.yaml").read_text("utf-8"))
VALUES = yaml.safe_load((FOLDER / "values.yaml").read_text("utf-8"))
SPEC = ENDPOINT["spec"]
# Where the operator's model container listens, whatever containerPort says.
MODEL_PORT = 8000

# Fields of InferenceEndpointConfig v1 in the operator's chart 2.2.2 (aws/sagemaker-hyperpod-cli at
# 011ca92, 2026-06-22), as far as a file like ours may use them: a type, words, or fields.
QUANTITIES = {"cpu": str, "memory": str, "nvidia.com/gpu": str}
FIELDS = {
    "endpointName": str,
    "modelName": str,
    "modelVersion": str,
    "instanceType": str,
    "invocationEndpoint": str,
    "replicas": int,
    "modelSourceConfig": {
        "modelSourceType": {"fsx", "s3", "huggingface", "kubernetesVolume"},
        "s3Storage": {"bucketName": str, "region": str},
        "modelLocation": str,
        "prefetchEnabled": bool,
    },
    "kvCacheSpec": {
        "enableL1Cache": bool,
        "enableL2Cache": bool,
        "l2CacheSpec": {"l2CacheBackend": {"redis", "tieredstorage"}, "l2CacheLocalUrl": str},
        "cacheConfigFile": str,
    },
    "intelligentRoutingSpec": {
        "enabled": bool,
        "routingStrategy": {"prefixaware", "kvaware", "session", "roundrobin"},
    },
    "metrics": {
        "enabled": bool,
        "metricsScrapeIntervalSeconds": int,
        "modelMetrics": {"path": str, "port": int},
    },
    "loadBalancer": {
        "healthCheckPath": str,
        "routingAlgorithm": {"least_outstanding_requests", "round_robin"},
    },
    "worker": {
        "image": str,
        "args": list,
        "command": list,
        "environmentVariables": list,
        "modelInvocationPort": {"containerPort": int, "name": {"http", "grpc"}},
        "modelVolumeMount": {"name": str, "mountPath": str},
        "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
        "requestLimits": {
            "maxConcurrentRequests": int,
            "maxQueueSize": int,
            "overflowStatusCode": int,
        },
    },
}
REQUIRED = {
    "modelName",
    "modelSourceConfig.modelSourceType",
    "worker.image",
    "worker.modelInvocationPort.containerPort",
    "worker.modelVolumeMount.name",
    "worker.resources",
}


def problems(value: object, fields: object, path: str = "") -> list[str]:
    """Return the paths where `value` has something that the operator's resource has not."""
    if isinstance(fields, dict):
        if not isinstance(value, dict):
            return [f"{path}: no mapping"]
        unknown = [f"{path}.{key}: unknown" for key in value.keys() - fields.keys()]
        known = value.keys() & fields.keys()
        return unknown + [
            p for key in known for p in problems(value[key], fields[key], f"{path}.{key}")
        ]
    if isinstance(fields, set):
        return [] if value in fields else [f"{path}: {value}"]
    return [] if type(value) is fields else [f"{path}: no {fields.__name__}"]


def at(value: dict, path: str) -> object:
    for key in path.split("."):
        value = value.get(key, {})
    return value


def arguments() -> argparse.Namespace:
    """Return what the engine would read from worker.args; an unknown flag is an error."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--port", type=int)
    parser.add_argument("--enable-prefix-caching", action="store_true")
    parser.add_argument("--kv-events-config", type=json.loads)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    return parser.parse_args(SPEC["worker"]["args"])


def test_the_object_has_only_fields_of_the_operators_resource():
    assert ENDPOINT["apiVersion"] == "inference.sagemaker.aws.amazon.com/v1"
    assert ENDPOINT["kind"] == "InferenceEndpointConfig"
    assert problems(SPEC, FIELDS) == []
    assert [path for path in REQUIRED if not at(SPEC, path)] == []


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"worker": {"arguments": []}}, [".worker.arguments: unknown"]),
        ({"replicas": "4"}, [".replicas: no int"]),
        (
            {"modelSourceConfig": {"modelSourceType": "hub"}},
            [".modelSourceConfig.modelSourceType: hub"],
        ),
        ({"worker": []}, [".worker: no mapping"]),
    ],
)
def test_a_field_that_the_operator_does_not_know_is_found(spec: dict, found: list[str]):
    assert problems(spec, FIELDS) == found


def test_the_engines_tell_what_the_gateway_needs():
    given = arguments()
    assert given.enable_prompt_tokens_details
    assert given.kv_events_config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",  # `*` binds; anything else would connect
        "replay_endpoint": "tcp://*:5558",
    }


def test_nothing_else_routes_and_no_second_way_leads_in():
    assert SPEC["intelligentRoutingSpec"]["enabled"] is False
    assert "endpointName" not in SPEC
    assert "pdSpec" not in SPEC


def test_the_gateway_looks_for_the_pods_that_the_operator_makes():
    (model,) = VALUES["config"]["models"]
    (discovery,) = model["discovery"]
    assert discovery == {
        "kind": "kubernetes",
        "namespace": ENDPOINT["metadata"]["namespace"],
        "selector": f"app={ENDPOINT['metadata']['name']}",
        "port": MODEL_PORT,
    }
    assert model["name"] == arguments().served_model_name
    assert arguments().port == MODEL_PORT == SPEC["worker"]["modelInvocationPort"]["containerPort"]
    assert arguments().model == SPEC["worker"]["modelVolumeMount"]["mountPath"]


def test_the_values_render_a_gateway_that_may_read_those_pods(charts, tmp_path: Path):
    objects = charts.render("-f", FOLDER / "values.yaml")
    assert_valid(objects)
    role = only(objects, "Role")
    assert role["metadata"]["namespace"] == ENDPOINT["metadata"]["namespace"]
    assert [(r["resources"], r["verbs"]) for r in role["rules"]] == [(["pods"], ["list", "watch"])]
    file = tmp_path / "gateway.yaml"
    file.write_text(only(objects, "ConfigMap")["data"]["gateway.yaml"])
    out = io.StringIO()
    assert check_file(file, {}, out) == EXIT_OK
    assert "warning" not in out.getvalue()
    grace_s = only(objects, "Deployment")["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    assert grace_s > load_config(file, {}).timeouts.drain_s
