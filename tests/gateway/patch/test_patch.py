"""`warmroute patch-deployment`: what it writes, what it refuses, and that twice is once."""

import copy
import io
import json
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cli import main
from gateway.patch.objects import patch as patch_object
from gateway.patch.settings import Settings
from gateway.patch.yamltext import rewrite

DEPLOYMENT = """\
# Our engines.
apiVersion: v1
kind: Service
metadata: {name: engines}   # left alone
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: engines
  namespace: serving
spec:
  replicas: 2
  selector:
    matchLabels: {app: engines}
  template:
    metadata:
      labels: {app: engines, tier: gpu}
    spec:
      containers:
        # The engine.
        - name: vllm
          image: lmcache/vllm-openai:v0.5.6
          args:
            - /opt/ml/model
            # as long as it fits
            - --max-model-len=16384
          env:
            - name: HF_HOME   # a cache
              value: /cache
          volumeMounts:
            - {name: cache, mountPath: /cache}
        - name: metrics
          image: otel/collector
      volumes:
        - name: cache
          emptyDir: {}
"""
# The form of the operator's own sample with both caches.
ENDPOINT = """\
apiVersion: inference.sagemaker.aws.amazon.com/v1
kind: InferenceEndpointConfig
metadata:
    name: qwen3-8b
    namespace: inference
spec:
    modelName: qwen3-8b
    kvCacheSpec:
        enableL1Cache: true
        enableL2Cache: true   # the operator's own
        l2CacheSpec:
            l2CacheBackend: redis
    worker:
        image: lmcache/vllm-openai:v0.5.6
        args:
        - "/opt/ml/model"
        - "--max-model-len"
        - "4096"
        modelVolumeMount:
            name: model-weights
            mountPath: /opt/ml/model
"""
POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
EXTRA = '{"fs_connector_relative_tmp_dir": "tmp-$(POD_NAME)"}'
VARIABLES = {
    "LMCACHE_EXTRA_CONFIG": EXTRA,
    "LMCACHE_REMOTE_URL": "fs://localhost:0/mnt/l2/",
    "LMCACHE_REMOTE_SERDE": "naive",
    "LMCACHE_CHUNK_SIZE": "256",
    "LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor",
    "PYTHONHASHSEED": "0",
}


def patch(text: str, tmp_path: Path, capsys, *arguments: str) -> tuple[int, str, str]:
    file = tmp_path / "engines.yaml"
    file.write_text(text, newline="")
    status = main(["patch-deployment", str(file), *arguments])
    told = capsys.readouterr()
    return status, told.out, told.err.replace(str(file), "FILE")


def deployment_in(text: str) -> dict:
    return next(d for d in yaml.safe_load_all(text) if d and d["kind"] == "Deployment")


def engine_in(text: str) -> dict:
    return deployment_in(text)["spec"]["template"]["spec"]["containers"][0]


def variables_of(container: dict) -> dict[str, str]:
    return {one["name"]: one.get("value") for one in container["env"]}


def edited(change) -> str:
    documents = list(yaml.safe_load_all(DEPLOYMENT))
    change(documents[1]["spec"]["template"]["spec"])
    return yaml.safe_dump_all(documents, sort_keys=False)


# What it writes.


def test_a_deployment_gets_everything_that_a_replica_of_the_pool_needs(tmp_path, capsys):
    status, out, err = patch(DEPLOYMENT, tmp_path, capsys)
    assert (status, err) == (0, "")
    engine = engine_in(out)
    assert engine["env"] == [
        {"name": "HF_HOME", "value": "/cache"},
        POD_NAME,
        *({"name": name, "value": value} for name, value in VARIABLES.items()),
    ]
    assert engine["volumeMounts"][-1] == {"name": "l2-pool", "mountPath": "/mnt/l2"}
    assert deployment_in(out)["spec"]["template"]["spec"]["volumes"][-1] == {
        "name": "l2-pool",
        "persistentVolumeClaim": {"claimName": "l2-pool"},
    }
    assert engine["args"][:2] == ["/opt/ml/model", "--max-model-len=16384"]
    flags = dict(zip(engine["args"][2:], engine["args"][3:], strict=False))
    assert json.loads(flags["--kv-events-config"]) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
    }
    assert "--enable-prompt-tokens-details" in engine["args"]
    assert json.loads(flags["--kv-transfer-config"]) == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
    }


def test_every_line_that_was_there_is_still_there_in_order(tmp_path, capsys):
    _, out, _ = patch(DEPLOYMENT, tmp_path, capsys)
    left = iter(out.splitlines())
    assert all(line in left for line in DEPLOYMENT.splitlines())


def test_twice_is_once(tmp_path, capsys):
    _, once, _ = patch(DEPLOYMENT, tmp_path, capsys)
    _, twice, _ = patch(once, tmp_path, capsys)
    assert twice == once
    _, diff, _ = patch(once, tmp_path, capsys, "--diff")
    assert diff == ""


def test_options_say_it_otherwise(tmp_path, capsys):
    _, out, _ = patch(
        DEPLOYMENT, tmp_path, capsys, "--pvc", "pool", "--volume", "kv", "--mount-path", "/kv/",
        "--seed", "42", "--hash", "builtin", "--chunk-tokens", "512", "--l1-gb", "20",
        "--l1-events", "--events-port", "6000", "--replay-port", "6001",
    )  # fmt: skip
    engine = engine_in(out)
    assert variables_of(engine) | {"POD_NAME": None} == {
        "HF_HOME": "/cache",
        "POD_NAME": None,
        **VARIABLES,
        "LMCACHE_REMOTE_URL": "fs://localhost:0/kv/",
        "LMCACHE_CHUNK_SIZE": "512",
        "LMCACHE_PRE_CACHING_HASH_ALGORITHM": "builtin",
        "PYTHONHASHSEED": "42",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "20",
        "LMCACHE_ENABLE_KV_EVENTS": "true",
    }
    assert engine["volumeMounts"][-1] == {"name": "kv", "mountPath": "/kv"}
    assert "tcp://*:6001" in " ".join(engine["args"])


def test_choices_that_are_written_there_stay_unless_an_option_says_otherwise(tmp_path, capsys):
    text = edited(
        lambda pod: pod["containers"][0]["env"].extend(
            [
                {"name": "PYTHONHASHSEED", "value": "7"},
                {"name": "LMCACHE_PRE_CACHING_HASH_ALGORITHM", "value": "builtin"},
            ]
        )
    )
    _, out, _ = patch(text, tmp_path, capsys, "--hash", "sha256_cbor")
    told = variables_of(engine_in(out))
    assert told["PYTHONHASHSEED"] == "7"
    assert told["LMCACHE_PRE_CACHING_HASH_ALGORITHM"] == "sha256_cbor"


def test_a_url_of_another_pool_is_replaced_and_is_there_once(tmp_path, capsys):
    text = edited(
        lambda pod: pod["containers"][0]["env"].extend(
            [
                {"name": "LMCACHE_REMOTE_URL", "value": "sagemaker-hyperpod://$(NODE_IP):9200"},
                {"name": "LMCACHE_EXTRA_CONFIG", "value": '{"sagemaker_hyperpod_x": "y"}'},
                {"name": "LMCACHE_REMOTE_URL", "value": "redis://r:6379"},
            ]
        )
    )
    _, out, _ = patch(text, tmp_path, capsys)
    names = [one["name"] for one in engine_in(out)["env"]]
    assert names.count("LMCACHE_REMOTE_URL") == 1
    told = variables_of(engine_in(out))
    assert told["LMCACHE_REMOTE_URL"] == "fs://localhost:0/mnt/l2/"
    assert json.loads(told["LMCACHE_EXTRA_CONFIG"]) == {
        "sagemaker_hyperpod_x": "y",
        "fs_connector_relative_tmp_dir": "tmp-$(POD_NAME)",
    }
    assert names.index("POD_NAME") < names.index("LMCACHE_EXTRA_CONFIG")


def test_a_pod_name_that_is_defined_too_late_is_moved(tmp_path, capsys):
    text = edited(
        lambda pod: pod["containers"][0]["env"].extend(
            [{"name": "LMCACHE_EXTRA_CONFIG", "value": EXTRA}, POD_NAME]
        )
    )
    _, out, _ = patch(text, tmp_path, capsys)
    names = [one["name"] for one in engine_in(out)["env"]]
    assert names[:3] == ["HF_HOME", "POD_NAME", "LMCACHE_EXTRA_CONFIG"]


@pytest.mark.parametrize("joined", [False, True], ids=["two words", "one word"])
def test_kv_events_that_are_configured_keep_their_ports_and_get_what_is_missing(
    joined, tmp_path, capsys
):
    given_events = '{"enable_kv_cache_events": false, "endpoint": "tcp://*:7000", "hwm": 5}'
    option = "--kv_events_config" if joined else "--kv-events-config"
    words = [f"{option}={given_events}"] if joined else [option, given_events]
    text = edited(lambda pod: pod["containers"][0]["args"].extend(words))
    _, out, _ = patch(text, tmp_path, capsys)
    args = engine_in(out)["args"]
    at = args.index(option) + 1 if not joined else 2
    assert json.loads(args[at].partition("=")[2] if joined else args[at]) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:7000",
        "replay_endpoint": "tcp://*:5558",
        "hwm": 5,
    }
    assert sum("events" in word for word in args) == 2 - joined


def test_a_command_that_is_a_list_is_completed_by_arguments(tmp_path, capsys):
    def change(pod):
        pod["containers"][0]["command"] = ["vllm", "serve", "m", "--enable-prompt-tokens-details"]
        del pod["containers"][0]["args"]

    _, out, _ = patch(edited(change), tmp_path, capsys)
    engine = engine_in(out)
    assert engine["command"] == ["vllm", "serve", "m", "--enable-prompt-tokens-details"]
    assert [w for w in engine["args"] if w.startswith("-")] == [
        "--kv-events-config",
        "--kv-transfer-config",
    ]


def test_an_endpoint_of_hyperpods_gets_what_its_kind_can_say(tmp_path, capsys):
    status, out, err = patch(ENDPOINT, tmp_path, capsys)
    assert status == 0
    spec = yaml.safe_load(out)["spec"]
    assert spec["kvCacheSpec"]["enableL1Cache"] is True
    assert {one["name"]: one["value"] for one in spec["worker"]["environmentVariables"]} == {
        name: VARIABLES[name]
        for name in (
            "LMCACHE_REMOTE_SERDE",
            "LMCACHE_CHUNK_SIZE",
            "LMCACHE_PRE_CACHING_HASH_ALGORITHM",
            "PYTHONHASHSEED",
        )
    }
    assert "--kv-events-config" in spec["worker"]["args"]
    assert "--kv-transfer-config" not in spec["worker"]["args"]  # the operator's to add
    assert "volumes" not in json.dumps(spec)
    assert "no volumes" in err
    assert "enableL2Cache is on" in err
    _, again, _ = patch(out, tmp_path, capsys)
    assert again == out


def test_a_url_in_an_endpoint_is_taken_out_because_it_would_be_there_twice(tmp_path, capsys):
    text = (
        ENDPOINT
        + "        environmentVariables:\n        - name: LMCACHE_REMOTE_URL\n          value: x\n"
    )
    _, out, err = patch(text, tmp_path, capsys)
    names = [v["name"] for v in yaml.safe_load(out)["spec"]["worker"]["environmentVariables"]]
    assert "LMCACHE_REMOTE_URL" not in names
    assert "taken out" in err


def test_a_configuration_file_of_lmcaches_is_worth_a_note(tmp_path, capsys):
    variable = {"name": "LMCACHE_CONFIG_FILE", "value": "/etc/lmcache.yaml"}
    text = edited(lambda pod: pod["containers"][0]["env"].append(variable))
    status, _, err = patch(text, tmp_path, capsys)
    assert status == 0
    assert "note: Deployment engines: LMCACHE_CONFIG_FILE is set" in err


@pytest.mark.parametrize("chunk", ["256k", "0", "-1", ""])
def test_a_chunk_that_is_no_number_is_refused(tmp_path, capsys, chunk):
    variable = {"name": "LMCACHE_CHUNK_SIZE", "value": chunk}
    text = edited(lambda pod: pod["containers"][0]["env"].append(variable))
    for options in (["--diff"], ["--verify", "--live", "none.yaml"]):
        status, _, err = patch(text, tmp_path, capsys, *options)
        assert status == 2
        assert "LMCACHE_CHUNK_SIZE" in err


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("--seed", "abc"),
        ("--seed", "4294967296"),
        ("--hash", "sha256-cbor"),
        ("--events-port", "65536"),
        ("--replay-port", "0"),
        ("--port", "http"),
        ("--l1-gb", "nan"),
        ("--l1-gb", "0"),
    ],
)
def test_words_that_an_engine_would_not_understand_are_refused(tmp_path, capsys, option, word):
    with pytest.raises(SystemExit) as ended:
        patch(DEPLOYMENT, tmp_path, capsys, option, word)
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_events_and_their_replay_on_one_port_are_refused(tmp_path, capsys):
    """The engine would find its own port taken."""
    written = edited(
        lambda pod: pod["containers"][0]["args"].append(
            '--kv-events-config={"endpoint": "tcp://0.0.0.0:5558"}'
        )
    )
    for text, options in ((DEPLOYMENT, ["--events-port", "5558"]), (written, [])):
        status, out, err = patch(text, tmp_path, capsys, *options)
        assert (status, out) == (2, "")
        assert ":5558 for their replay" in err


def test_a_file_that_cannot_be_read_is_told_by_its_name(tmp_path, capsys):
    (tmp_path / "latin").write_bytes(b"name: \xff")
    for name, why in (("latin", "no UTF-8 text"), ("", "directory"), ("none", "No such file")):
        file = str(tmp_path / name).rstrip("/")
        assert main(["patch-deployment", file]) == 2
        err = capsys.readouterr().err
        assert file in err
        assert why in err
        assert "Errno" not in err


# Where it writes.


def test_it_reads_standard_input(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DEPLOYMENT.encode())))
    assert main(["patch-deployment", "-"]) == 0
    assert variables_of(engine_in(capsys.readouterr().out))["PYTHONHASHSEED"] == "0"


def test_it_writes_in_place_or_elsewhere_with_the_line_ends_that_were_there(tmp_path, capsys):
    file, other = tmp_path / "engines.yaml", tmp_path / "other.yaml"
    windows = DEPLOYMENT.replace("\n", "\r\n")
    assert patch(windows, tmp_path, capsys, "-o", str(other)) == (0, "", "")
    assert file.read_bytes() == windows.encode()
    text = other.read_bytes().decode()
    assert text.count("\n") == text.count("\r\n") > windows.count("\n")
    assert patch(windows, tmp_path, capsys, "--in-place") == (0, "", "")
    assert file.read_bytes() == other.read_bytes()


def test_in_a_file_of_mixed_line_ends_each_line_keeps_its_own(tmp_path, capsys):
    mixed = DEPLOYMENT.replace("replicas: 2\n", "replicas: 2\r\n")
    assert patch(mixed, tmp_path, capsys, "--in-place") == (0, "", "")
    lines = (tmp_path / "engines.yaml").read_bytes().decode().split("\n")
    assert [line for line in lines if line.endswith("\r")] == ["  replicas: 2\r"]
    assert patch(mixed.replace("\n", "\r\n", 1), tmp_path, capsys)[0] == 0


def test_a_diff_shows_what_would_change_and_writes_nothing(tmp_path, capsys):
    status, out, _ = patch(DEPLOYMENT, tmp_path, capsys, "--diff")
    assert status == 0
    assert "+            - name: PYTHONHASHSEED" in out
    assert not [line for line in out.splitlines()[2:] if line.startswith("-")]
    assert (tmp_path / "engines.yaml").read_text() == DEPLOYMENT


def test_a_merge_patch_has_the_part_that_needs_no_order(tmp_path, capsys):
    _, out, _ = patch(DEPLOYMENT, tmp_path, capsys, "--print", "merge-patch")
    spec = yaml.safe_load(out)["spec"]["template"]["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "l2-pool"}
    (engine,) = spec["containers"]
    assert engine["name"] == "vllm"
    assert variables_of(engine) == {"POD_NAME": None, **VARIABLES}


# What it refuses.


def with_args(*args: str, command: list[str] | None = None) -> str:
    def change(pod):
        pod["containers"][0]["args"] = list(args)
        if command:
            pod["containers"][0]["command"] = command

    return edited(change)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\n", "FILE: no InferenceEndpointConfig, Deployment or StatefulSet in it runs vLLM"),
        ("a: {{ x }}\n", "FILE, document 1 from line 1 (not readable): "),
        ("kind: List\nitems: []\n", "document 1 from line 1 (List without a name): it is a list"),
        (DEPLOYMENT.replace("vllm", "tgi"), "in it runs vLLM"),
        (with_args("-c", "vllm serve m", command=["/bin/sh"]), "one line for a shell"),
        (with_args("vllm serve m", command=["bash", "-c"]), "one line for a shell"),
        (with_args(), "it has no args"),
        (with_args("m", "--kv-events-config"), "--kv-events-config has no value"),
        (with_args("m", "--kv-events-config", "{"), "--kv-events-config is no JSON object"),
        (with_args("m", "--kv-events-config.publisher", "zmq"), "is given in parts"),
        (with_args("m", "--kv-transfer-config", '{"kv_connector":"NixlConnector"}'), "no LMCache"),
        (
            with_args("m", "--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector"}'),
            "an --l2-adapter of the LMCache server",
        ),
        (
            edited(lambda pod: pod["volumes"].append({"name": "l2-pool", "emptyDir": {}})),
            "document 2 from line 6 (Deployment engines): volumes: l2-pool is there with no claim",
        ),
        (
            edited(lambda pod: pod["containers"][0]["volumeMounts"][0].update(mountPath="/mnt/l2")),
            "/mnt/l2 is taken by volume cache",
        ),
        (
            edited(
                lambda pod: pod["containers"][0]["volumeMounts"].append(
                    {"name": "l2-pool", "mountPath": "/pool"}
                )
            ),
            "l2-pool is mounted at /pool",
        ),
        (
            edited(
                lambda pod: pod["containers"][0]["env"].append({"name": "POD_NAME", "value": "x"})
            ),
            "env POD_NAME is something else",
        ),
        (
            edited(
                lambda pod: pod["containers"][0]["env"].append(
                    {"name": "LMCACHE_EXTRA_CONFIG", "value": "a: 1"}
                )
            ),
            "LMCACHE_EXTRA_CONFIG is no JSON object",
        ),
        (
            edited(lambda pod: pod["containers"].append(dict(pod["containers"][0], name="b"))),
            "vllm, b all run vLLM: give --container",
        ),
        (
            ENDPOINT.replace(
                "kvCacheSpec:\n", "kvCacheSpec:\n        lmcache: {mode: MultiProcess}\n"
            ),
            "lmcache.mode is MultiProcess",
        ),
        (DEPLOYMENT.replace("      containers:", "      containers: &x"), None),
    ],
)
def test_what_cannot_be_patched_is_told_with_its_place(text, why, tmp_path, capsys):
    status, out, err = patch(text, tmp_path, capsys)
    if why is None:  # an anchor that nothing refers to is no obstacle
        assert status == 0
        return
    assert (status, out) == (2, "")
    assert why in err
    assert (tmp_path / "engines.yaml").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--mount-path", "mnt"], "no absolute path"),
        (["--mount-path", "/"], "no absolute path"),
        (["--mount-path", "/a,/b"], "LMCache would read two paths"),
        (["--container", "engine"], "containers: no engine, there are vllm, metrics"),
        (["--name", "other"], "called other"),
        (["--metrics", "x"], "--metrics goes with --live"),
    ],
)
def test_a_wrong_option_is_told(arguments, why, tmp_path, capsys):
    status, _, err = patch(DEPLOYMENT, tmp_path, capsys, *arguments)
    assert status == 2
    assert why in err


# Whatever is there before, twice is once, and nothing else is lost.

names = st.sampled_from(["A", "LMCACHE_REMOTE_URL", "PYTHONHASHSEED", "LMCACHE_REMOTE_SERDE", "B"])
variables = st.lists(
    st.builds(lambda n, v: {"name": n, "value": v}, names, st.sampled_from(["", "1", "x y", "'"])),
    max_size=4,
)
arguments = st.lists(
    st.sampled_from(
        ["--a", "--enable-prompt-tokens-details", "--max-model-len=1",
         '--kv-events-config={"enable_kv_cache_events": true}']
    ),
    max_size=3,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(variables, arguments, st.booleans(), st.booleans())
def test_any_deployment_is_patched_once_and_for_all(env, args, flow, with_mounts):
    thing = copy.deepcopy(list(yaml.safe_load_all(DEPLOYMENT))[1])
    pod = thing["spec"]["template"]["spec"]
    pod["containers"][0]["env"] = env
    pod["containers"][0]["args"] = ["m", *args]
    if not with_mounts:
        del pod["containers"][0]["volumeMounts"], pod["volumes"]
    text = yaml.safe_dump(thing, sort_keys=False, default_flow_style=flow or None)
    once = patch_object(thing, Settings())
    written = rewrite(text, once.wanted)
    again = patch_object(yaml.safe_load(written), Settings())
    assert again.wanted == once.wanted == yaml.safe_load(written)
    assert rewrite(written, again.wanted) == written
    engine = once.wanted["spec"]["template"]["spec"]["containers"][0]
    assert [v for v in engine["env"] if v["name"] in "AB"] == [v for v in env if v["name"] in "AB"]
    kept = [word for word in args if not word.startswith("--kv")]
    assert engine["args"][0] == "m"
    assert [word for word in engine["args"][1 : len(args) + 1] if word in kept] == kept
