"""`warmroute patch-deployment --verify`: what runs, against what was meant to."""

import copy
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gateway.cli import main
from gateway.patch.container import pool_mount, pool_variables, pool_volume
from gateway.patch.counters import problems, totals, traffic
from gateway.patch.settings import Settings

ENDPOINT = """\
apiVersion: inference.sagemaker.aws.amazon.com/v1
kind: InferenceEndpointConfig
metadata: {name: qwen3-8b, namespace: inference}
spec:
  modelName: qwen3-8b
  worker:
    image: lmcache/vllm-openai:v0.5.6
    args: [/opt/ml/model]
"""
EVENTS = json.dumps(Settings().events())

# What LMCache exports in vLLM's own page (names of formats of 0.5.6).
USED = """\
# HELP lmcache:num_requested_tokens_total x
vllm:prompt_tokens_total{model_name="m"} 9000.0
lmcache:num_requested_tokens_total{model_name="m",worker_id="0"} 4096.0
lmcache:num_remote_read_requests_total{model_name="m",worker_id="0"} 7.0
lmcache:num_remote_write_requests_total{model_name="m",worker_id="0"} 9.0
lmcache:remote_time_to_get_bucket{le="+Inf"} 7.0
lmcache:retrieve_speed NaN
lmcache:lmcache_is_healthy 1.0
"""


def pod(name: str = "qwen3-8b-1", **spec: object) -> dict:
    """A pod as the operator and the policy make it: three containers, all of ours in the first."""
    engine = {
        "name": "qwen3-8b",
        "image": "lmcache/vllm-openai:v0.5.6",
        "args": ["/opt/ml/model", "--kv-events-config", EVENTS, "--enable-prompt-tokens-details"],
        "env": [
            *pool_variables([], Settings()),
            {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "volumeMounts": [pool_mount(Settings())],
    }
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "inference", "labels": {"app": "qwen3-8b"}},
        "spec": {
            "containers": [engine, {"name": "reverse-proxy"}, {"name": "otel-collector"}],
            "volumes": [pool_volume(Settings())],
            **spec,
        },
        "status": {"phase": "Running"},
    }


def verify(things: list[dict], tmp_path: Path, capsys, *arguments: str, text: str = ENDPOINT):
    file, live = tmp_path / "endpoint.yaml", tmp_path / "live.yaml"
    file.write_text(text)
    # As `kubectl get -o yaml` writes several.
    live.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": things}))
    status = main(["patch-deployment", str(file), "--verify", "--live", str(live), *arguments])
    return status, capsys.readouterr().out


def engine(thing: dict) -> dict:
    return thing["spec"]["containers"][0]


def test_pods_as_they_should_be_are_no_drift(tmp_path, capsys):
    status, out = verify([pod(), pod("qwen3-8b-2")], tmp_path, capsys)
    assert (status, out) == (
        0,
        "ok     InferenceEndpointConfig qwen3-8b: 2 pods as they should be\n",
    )


def with_variable(name: str, value: str | None):
    def change(thing: dict) -> None:
        variables = engine(thing)["env"]
        variables[:] = [one for one in variables if one["name"] != name]
        if value is not None:
            variables.append({"name": name, "value": value})

    return change


def twice(thing: dict) -> None:
    engine(thing)["env"].append({"name": "LMCACHE_REMOTE_URL", "value": "redis://r"})


def unordered(thing: dict) -> None:
    engine(thing)["env"].reverse()


def without_pool(thing: dict) -> None:
    thing["spec"]["volumes"] = []
    engine(thing)["volumeMounts"] = []


def read_only(thing: dict) -> None:
    engine(thing)["volumeMounts"][0]["readOnly"] = True


def other_volume(thing: dict) -> None:
    thing["spec"]["volumes"].append({"name": "x", "emptyDir": {}})
    engine(thing)["volumeMounts"][0]["name"] = "x"


def other_container(thing: dict) -> None:
    engine(thing)["name"] = "model"


def with_args(*words: str):
    def change(thing: dict) -> None:
        engine(thing)["args"] = list(words)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            # What aws/sagemaker-hyperpod-cli#431 reports.
            with_variable("LMCACHE_REMOTE_URL", "sagemaker-hyperpod://$(NODE_IP):9200"),
            ["LMCACHE_REMOTE_URL is sagemaker-hyperpod://$(NODE_IP):9200, not fs://localhost:0/mnt/l2/"],
        ),
        (with_variable("LMCACHE_REMOTE_URL", None), ["LMCACHE_REMOTE_URL is missing"]),
        (with_variable("PYTHONHASHSEED", "1"), ["PYTHONHASHSEED is 1, not 0"]),
        (with_variable("LMCACHE_EXTRA_CONFIG", "{}"), ["no directory of its own"]),
        (twice, ["LMCACHE_REMOTE_URL is there 2 times"]),
        (unordered, ["POD_NAME is not defined before LMCACHE_EXTRA_CONFIG"]),
        (without_pool, ["no volume of claim l2-pool", "nothing is mounted at /mnt/l2"]),
        (read_only, ["/mnt/l2 is mounted read-only"]),
        (other_volume, ["/mnt/l2 is volume x, not claim l2-pool"]),
        (other_container, ["no container qwen3-8b, there are model, reverse-proxy, otel"]),
        (with_args("m"), ["no --kv-events-config", "no --enable-prompt-tokens-details"]),
        (
            with_args("m", "--kv-events-config={}", "--enable-prompt-tokens-details"),
            ["--kv-events-config does not enable them"],
        ),
        (with_args(), ["it has no args"]),
    ],
)  # fmt: skip
def test_a_pod_that_was_rendered_again_is_told_with_what_it_lost(change, told, tmp_path, capsys):
    drifted = pod("qwen3-8b-2")
    change(drifted)
    status, out = verify([pod(), drifted], tmp_path, capsys)
    assert status == 1
    lines = out.splitlines()
    assert all(line.startswith("DRIFT  Pod qwen3-8b-2: ") for line in lines), out
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert part in line


def test_pods_that_are_over_or_of_others_do_not_count(tmp_path, capsys):
    over, other, elsewhere = pod("over"), pod("other"), pod("elsewhere")
    over["status"]["phase"] = "Succeeded"
    other["metadata"]["labels"] = {"app": "router"}
    elsewhere["metadata"]["namespace"] = "test"
    status, out = verify([over, other, elsewhere], tmp_path, capsys)
    assert (status, out) == (
        1,
        "DRIFT  InferenceEndpointConfig qwen3-8b: no pod with app=qwen3-8b\n",
    )


def test_a_deployment_of_ones_own_is_compared_too(tmp_path, capsys):
    text = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: engines}
spec:
  selector: {matchLabels: {app: qwen3-8b}}
  template:
    metadata: {labels: {app: qwen3-8b}}
    spec:
      containers:
        - {name: qwen3-8b, image: lmcache/vllm-openai, args: [m]}
"""
    live = yaml.safe_load(text)
    status, out = verify([pod(), live], tmp_path, capsys, text=text)
    assert status == 1
    assert "DRIFT  Deployment engines: LMCACHE_REMOTE_URL is missing" in out
    # The pod is as an operator would load LMCache; here it has to be in its arguments.
    (of_pod,) = (line for line in out.splitlines() if "Pod qwen3-8b-1" in line)
    assert "no --kv-transfer-config with LMCacheConnectorV1" in of_pod


# LMCache's own counters.


def without(name: str) -> str:
    return "".join(line for line in USED.splitlines(keepends=True) if name not in line)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (USED, []),
        (without("remote_read"), []),  # a pool that is filled and not read yet
        (
            without("num_remote"),
            ["LMCache was asked for 4,096 tokens, and never read or wrote the pool"],
        ),
        (without("num_remote").replace("4096.0", "511.0"), []),  # nothing to be said yet
        (USED.replace("healthy 1.0", "healthy 0.0"), ["lmcache_is_healthy is 0"]),
        (USED + "lmcache:remote_ping_errors_total 3.0\n", ["remote_ping_errors is 3"]),
        (
            USED + "lmcache:remote_ping_errors_total 3\nlmcache:remote_ping_successes_total 1\n",
            [],
        ),
        ("vllm:prompt_tokens_total 5.0\n", ["no metric of LMCache's"]),
        ("", ["no metric of LMCache's"]),
    ],
)
def test_a_pool_that_is_not_used_is_told(page: str, found: list[str]):
    told = problems(page, 256)
    assert len(told) == len(found)
    for line, part in zip(told, found, strict=True):
        assert part in line


def test_counters_are_added_up_over_labels():
    page = (
        'lmcache:num_hit_tokens_total{worker="0"} 3\nlmcache:num_hit_tokens_total{worker="1"} 4\n'
    )
    assert totals(page) == {"num_hit_tokens": 7}
    assert traffic(USED) == "4,096 tokens asked for, 7 reads and 9 writes of the pool"


def test_a_page_may_come_from_a_file(tmp_path, capsys):
    page = tmp_path / "metrics.txt"
    page.write_text(without("num_remote"))
    status, out = verify([pod()], tmp_path, capsys, "--metrics", str(page))
    assert status == 1
    assert "DRIFT  InferenceEndpointConfig qwen3-8b, metrics: LMCache was asked for 4,096" in out


# A cluster.


class Cluster(BaseHTTPRequestHandler):
    """An API server with pods and their metrics; Deployments are forbidden."""

    pods: list[dict]
    pages: dict[str, str]

    def do_GET(self):
        url = urlsplit(self.path)
        base = "/api/v1/namespaces/inference/pods"
        if url.path == base and parse_qs(url.query) == {"labelSelector": ["app=qwen3-8b"]}:
            items = copy.deepcopy(self.pods)
            for item in items:
                del item["kind"]  # as in a list of the API
            return self.answer(200, json.dumps({"kind": "PodList", "items": items}))
        for name, page in self.pages.items():
            if url.path == f"{base}/{name}:8000/proxy/metrics":
                return self.answer(200, page)
        return self.answer(403, json.dumps({"kind": "Status", "message": "forbidden", "code": 403}))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextmanager
def cluster(tmp_path: Path, pods: list[dict], pages: dict[str, str]):
    handler = type("Handler", (Cluster,), {"pods": pods, "pages": pages})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = tmp_path / "kubeconfig"
        name = {"name": "c"}
        address = f"http://127.0.0.1:{server.server_port}"
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "clusters": [{**name, "cluster": {"server": address}}],
                    "contexts": [{**name, "context": {"cluster": "c", "namespace": "inference"}}],
                }
            )
        )
        try:
            yield str(config)
        finally:
            server.shutdown()
            thread.join()


def verify_cluster(tmp_path: Path, capsys, kubeconfig: str) -> tuple[int, str, str]:
    file = tmp_path / "endpoint.yaml"
    file.write_text(ENDPOINT)
    status = main(["patch-deployment", str(file), "--verify", "--kubeconfig", kubeconfig])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_cluster_is_asked_for_pods_and_for_what_lmcache_counts(tmp_path, capsys):
    with cluster(tmp_path, [pod(), pod("b")], {"qwen3-8b-1": USED}) as kubeconfig:
        status, out, _ = verify_cluster(tmp_path, capsys, kubeconfig)
    assert status == 0
    assert "Pod qwen3-8b-1: 4,096 tokens asked for, 7 reads and 9 writes of the pool" in out
    assert "Pod b: not asked for its use of the pool, its /metrics on port 8000: the right" in out
    assert "ok     InferenceEndpointConfig qwen3-8b: 2 pods" in out


def test_a_pool_that_no_pod_of_a_cluster_uses_is_drift(tmp_path, capsys):
    with cluster(tmp_path, [pod()], {"qwen3-8b-1": without("num_remote")}) as kubeconfig:
        status, out, _ = verify_cluster(tmp_path, capsys, kubeconfig)
    assert status == 1
    assert "DRIFT  Pod qwen3-8b-1: LMCache was asked for 4,096 tokens" in out


def test_a_cluster_that_does_not_answer_is_no_drift(tmp_path, capsys):
    with cluster(tmp_path, [], {}) as kubeconfig:
        pass
    status, out, err = verify_cluster(tmp_path, capsys, kubeconfig)
    assert (status, out) == (2, "")
    assert err.startswith("warmroute patch-deployment: ")
