"""deploy/hyperpod with a pool: endpoint, policy and values fit, and outlive the operator."""

import copy
import io
import json
from pathlib import Path

import yaml

from gateway.cli import main
from gateway.config.check import check_file
from gateway.config.load import load_config
from gateway.exits import EXIT_OK
from tests.deploy.test_hyperpod import FIELDS, REQUIRED, at, problems
from tests.support.charts import ROOT, assert_valid, charts, only

__all__ = ["charts"]

FOLDER = ROOT / "deploy/hyperpod"
ENDPOINT_FILE = FOLDER / "endpoint-l2.yaml"
ENDPOINT = yaml.safe_load(ENDPOINT_FILE.read_text("utf-8"))
POLICY = yaml.safe_load((FOLDER / "policy-l2.yaml").read_text("utf-8"))
CLAIM = list(yaml.safe_load_all((ROOT / "deploy/curvine/storage.yaml").read_text("utf-8")))[1]
(RULE,) = POLICY["spec"]["rules"]


def operators_pod(name: str = "qwen3-8b-7d9f-x2x4z", **more: object) -> dict:
    """A pod as operators render it, by what users of aws/sagemaker-hyperpod-cli#431 report."""
    worker = ENDPOINT["spec"]["worker"]
    own = [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "LMCACHE_REMOTE_URL", "value": "sagemaker-hyperpod://$(NODE_IP):9200"},
        {
            "name": "LMCACHE_EXTRA_CONFIG",
            "value": '{"sagemaker_hyperpod_shared_memory_name": "ai_toolkit_cache"}',
        },
        {"name": "PYTHONHASHSEED", "value": "0"},
    ]
    engine = {
        "name": "qwen3-8b",
        "image": worker["image"],
        "args": worker["args"],
        "env": own,
        "volumeMounts": [{"name": "model-weights", "mountPath": "/opt/ml/model"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "inference",
            "labels": {"app": "qwen3-8b", **more},
        },
        "spec": {
            "containers": [engine, {"name": "reverse-proxy"}, {"name": "otel-collector"}],
            "volumes": [{"name": "model-weights", "emptyDir": {}}],
        },
        "status": {"phase": "Running"},
    }


# As much of Kyverno as the policy uses.


def admitted(pod: dict) -> dict:
    """Return a pod as it is after Kyverno: match, preconditions, strategic merge."""
    ((_, (chosen,)),) = RULE["match"].items()
    resources = chosen["resources"]
    labels = resources["selector"]["matchLabels"]
    matches = (
        pod["kind"] in resources["kinds"]
        and pod["metadata"]["namespace"] in resources["namespaces"]
        and labels.items() <= pod["metadata"]["labels"].items()
    )
    (condition,) = RULE["preconditions"]["all"]
    name = condition["key"].split("'")[1]
    assert condition["key"] == (
        f"{{{{ request.object.spec.containers[?name=='{name}'] | length(@) }}}}"
    )
    count = sum(one["name"] == name for one in pod["spec"]["containers"])
    if not matches or count != condition["value"]:
        return pod
    changed = copy.deepcopy(pod)
    patch = RULE["mutate"]["patchStrategicMerge"]["spec"]
    assert patch.keys() == {"volumes", "containers"}
    changed["spec"]["volumes"] = merged(changed["spec"]["volumes"], patch["volumes"], "name")
    for container in changed["spec"]["containers"]:
        for anchored in patch["containers"]:
            if anchored["(name)"] == container["name"]:
                for key, by in (("env", "name"), ("volumeMounts", "mountPath")):
                    container[key] = merged(container.get(key, []), anchored[key], by)
    return changed


def merged(old: list[dict], patch: list[dict], key: str) -> list[dict]:
    """Merge lists as Kyverno does: by a key, new items in front."""
    patch = json.loads(json.dumps(patch).replace(r"\\$(", "$("))
    by_key = {item[key]: item for item in patch}
    kept = [by_key.pop(item[key], item) for item in old]
    return [*by_key.values(), *kept]


def verify(tmp_path: Path, *pods: dict) -> int:
    live = tmp_path / "live.json"
    live.write_text(json.dumps({"kind": "List", "items": list(pods)}))
    return main(["patch-deployment", str(ENDPOINT_FILE), "--verify", "--live", str(live)])


def test_pods_have_the_pool_however_the_operator_renders_them(tmp_path: Path, capsys):
    assert verify(tmp_path, operators_pod()) == 1
    assert "LMCACHE_REMOTE_URL is sagemaker-hyperpod://" in capsys.readouterr().out
    assert verify(tmp_path, admitted(operators_pod()), admitted(operators_pod("b"))) == 0
    bare = operators_pod("c")
    bare["spec"]["containers"][0]["env"] = []
    assert verify(tmp_path, admitted(bare)) == 0


def test_a_policy_that_did_not_apply_is_noticed(tmp_path: Path, capsys):
    assert verify(tmp_path, admitted(operators_pod()), operators_pod("b")) == 1
    told = capsys.readouterr().out
    assert "Pod b: no volume of claim l2-pool" in told
    assert "x2x4z" not in told


def test_other_pods_are_left_alone():
    router = operators_pod("router")
    router["spec"]["containers"] = [{"name": "router"}]
    elsewhere = operators_pod("elsewhere")
    elsewhere["metadata"]["namespace"] = "test"
    other = operators_pod("other")
    other["metadata"]["labels"] = {"app": "other"}
    for pod in (router, elsewhere, other):
        assert admitted(pod) == pod
    assert admitted(admitted(operators_pod())) == admitted(operators_pod())


def test_what_kyverno_makes_is_a_pod_that_kubernetes_takes():
    pod = admitted(operators_pod())
    for container in pod["spec"]["containers"]:
        container.setdefault("image", "x")
    assert_valid([pod])


def test_the_files_are_what_patch_deployment_writes(capsys):
    assert main(["patch-deployment", str(ENDPOINT_FILE), "--diff"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["patch-deployment", str(ENDPOINT_FILE), "--print", "kyverno"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == POLICY


def test_the_endpoint_has_only_fields_of_the_operators_resource():
    spec = ENDPOINT["spec"]
    assert problems(spec, FIELDS) == []
    assert [path for path in REQUIRED if not at(spec, path)] == []
    assert spec["kvCacheSpec"] == {"enableL1Cache": True, "enableL2Cache": False}
    assert spec["intelligentRoutingSpec"]["enabled"] is False


def test_the_gateway_looks_for_the_files_that_the_replicas_write(charts, tmp_path: Path):
    objects = charts.render("-f", FOLDER / "values-l2.yaml")
    assert_valid(objects)
    file = tmp_path / "gateway.yaml"
    file.write_text(only(objects, "ConfigMap")["data"]["gateway.yaml"])
    out = io.StringIO()
    assert check_file(file, {}, out) == EXIT_OK, out.getvalue()
    (model,) = load_config(file, {}).models
    variables = {
        one["name"]: one["value"] for one in ENDPOINT["spec"]["worker"]["environmentVariables"]
    }
    pool = model.shared_cache
    assert pool is not None
    assert pool.kind == "lmcache_fs"
    assert str(pool.chunk_tokens) == variables["LMCACHE_CHUNK_SIZE"]
    assert pool.hash == variables["LMCACHE_PRE_CACHING_HASH_ALGORITHM"]
    assert str(pool.seed) == variables["PYTHONHASHSEED"]
    assert pool.model_path == ENDPOINT["spec"]["worker"]["args"][0]
    patch = RULE["mutate"]["patchStrategicMerge"]["spec"]
    (mount,) = patch["containers"][0]["volumeMounts"]
    assert list(pool.paths) == [mount["mountPath"]]
    container = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "l2-pool", "mountPath": "/mnt/l2", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_one_claim_is_meant_everywhere():
    name = CLAIM["metadata"]["name"]
    assert CLAIM["metadata"]["namespace"] == ENDPOINT["metadata"]["namespace"]
    volumes = RULE["mutate"]["patchStrategicMerge"]["spec"]["volumes"]
    assert volumes == [{"name": "l2-pool", "persistentVolumeClaim": {"claimName": name}}]
    values = yaml.safe_load((FOLDER / "values-l2.yaml").read_text("utf-8"))
    assert values["extraVolumes"][0]["persistentVolumeClaim"]["claimName"] == name


def test_the_other_objects_are_what_kubernetes_takes():
    (service,) = yaml.safe_load_all((FOLDER / "service-headless.yaml").read_text("utf-8"))
    checking = list(yaml.safe_load_all((FOLDER / "verify.yaml").read_text("utf-8")))
    assert_valid([service, *checking])
    assert service["spec"]["selector"] == {"app": ENDPOINT["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    (job,) = (one for one in checking if one["kind"] == "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][1:] == [
        "patch-deployment",
        f"/meant/{ENDPOINT_FILE.name}",
        "--verify",
    ]
