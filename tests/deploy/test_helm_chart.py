"""deploy/helm/warmroute, rendered by the real Helm and held against Kubernetes' schemas."""

import hashlib
import io
import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest
import yaml

from gateway.config.check import check_file
from gateway.config.load import load_config
from gateway.config.models import GatewayConfig
from gateway.exits import EXIT_OK
from tests.support.charts import CHART, NAMESPACE, ROOT, assert_valid, charts, only

__all__ = ["charts"]

VALUES = sorted((ROOT / "tests/data/helm").glob("*.yaml"))
POLICIES = sorted((ROOT / "deploy/policies").glob("*.yaml"))
NAMES = [file.stem for file in VALUES]


def values(name: str) -> Path:
    return ROOT / f"tests/data/helm/{name}.yaml"


def rendered(charts, name: str, *more: str) -> list[dict]:
    return charts.render("-f", values(name), *more)


def pod_of(objects: list[dict]) -> dict:
    return only(objects, "Deployment")["spec"]["template"]


def container_of(objects: list[dict]) -> dict:
    (container,) = pod_of(objects)["spec"]["containers"]
    return container


def config_of(objects: list[dict], folder: Path) -> GatewayConfig:
    return load_config(written(objects, folder), {})


def written(objects: list[dict], folder: Path) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(only(objects, "ConfigMap", "rel-warmroute")["data"]["gateway.yaml"], "utf-8")
    return file


def test_the_chart_states_the_version_of_the_gateway():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)[1]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"] == version


@pytest.mark.parametrize("file", VALUES, ids=NAMES)
def test_helm_lint_finds_nothing(charts, file: Path):
    charts.run("helm", "lint", "--strict", CHART, "-f", file)


@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_what_is_rendered(charts, name: str):
    objects = rendered(charts, name)
    assert_valid(objects)
    assert all(o["metadata"].get("namespace") for o in objects)
    assert len(
        {(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects}
    ) == len(objects)


@pytest.mark.parametrize("name", NAMES)
def test_the_rendered_configuration_passes_the_check(charts, name: str, tmp_path: Path):
    out = io.StringIO()
    assert check_file(written(rendered(charts, name), tmp_path), {}, out) == EXIT_OK, out.getvalue()


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.stem)
def test_a_configuration_means_the_same_as_file_as_values_and_as_text(
    charts, file: Path, tmp_path: Path
):
    # The chart has to know the port; a number stands where the example leaves it to a variable.
    text = re.sub(r"port: \$\{\w+:-(\d+)\}", r"port: \1", file.read_text("utf-8"))
    plain, in_values = tmp_path / "plain.yaml", tmp_path / "values.yaml"
    plain.write_text(text)
    in_values.write_text("config:\n" + textwrap.indent(text, "  "))
    as_values = config_of(charts.render("-f", in_values), tmp_path)
    as_text = charts.render("--set-file", f"configText={plain}")
    assert only(as_text, "ConfigMap")["data"]["gateway.yaml"] == text
    assert as_values == config_of(as_text, tmp_path) == load_config(plain, {})


def test_numbers_and_words_survive_helm(charts, tmp_path: Path):
    config = config_of(rendered(charts, "everything"), tmp_path)
    assert config.index.max_blocks == 12_000_000
    assert config.models[0].cost.prefill_pair_s == 4e-9
    assert config_of(rendered(charts, "static"), tmp_path).models[0].replicas[1].kv_events == "off"


# What a pod may and needs.


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("sidecar")])
def test_every_container_runs_with_the_least_it_needs(charts, name: str):
    pod = pod_of(rendered(charts, name))["spec"]
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        security = container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_user_is_that_of_the_image(charts):
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    security = container_of(rendered(charts, "static"))["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_the_only_places_to_write_are_tmp_and_the_hubs_cache(charts):
    objects = rendered(charts, "static")
    container = container_of(objects)
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    volumes = {v["name"]: v for v in pod_of(objects)["spec"]["volumes"]}
    writable = {path for path, m in mounts.items() if not m.get("readOnly")}
    assert writable == {"/tmp", "/var/cache/huggingface"}
    assert all(volumes[mounts[p]["name"]]["emptyDir"]["sizeLimit"] for p in writable)
    assert {"name": "HF_HOME", "value": "/var/cache/huggingface"} in container["env"]


def test_the_configuration_is_where_the_image_looks_for_it(charts):
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    assert '"--config", "/etc/warmroute/gateway.yaml"]' in dockerfile
    mount = container_of(rendered(charts, "static"))["volumeMounts"][0]
    assert mount == {
        "name": "warmroute-config",
        "readOnly": True,
        "mountPath": "/etc/warmroute",  # a folder: a subPath would never change
    }


def test_probes_ask_the_public_port(charts):
    container = container_of(rendered(charts, "everything"))
    asked = {k: container[k]["httpGet"] for k in container if k.endswith("Probe")}
    livez = {"path": "/livez", "port": 8443, "scheme": "HTTPS"}
    assert asked == {
        "startupProbe": livez,
        "livenessProbe": livez,
        "readinessProbe": livez | {"path": "/readyz"},
    }


@pytest.mark.parametrize(
    ("name", "pre_stop_s", "grace_s"),
    [
        ("static", 5, 5 + 30 + 10),  # the gateway's default of drain_s
        ("text", 5, 5 + 1 + 10),  # 0.5 s, rounded up
        ("rolled", 20, 20 + 63 + 7),  # 62.5 s, rounded up
        ("everything", 5, 5 + 120 + 10),
    ],
)
def test_the_grace_covers_pre_stop_and_drain(charts, name: str, pre_stop_s: int, grace_s: int):
    objects = rendered(charts, name)
    sleep = container_of(objects)["lifecycle"]["preStop"]["sleep"]
    assert sleep == {"seconds": pre_stop_s}
    assert pod_of(objects)["spec"]["terminationGracePeriodSeconds"] == grace_s


def test_the_templates_defaults_are_the_gateways(charts, tmp_path: Path):
    objects = rendered(charts, "alb")
    config = config_of(objects, tmp_path)
    assert container_of(objects)["ports"] == [
        {"name": "warmroute", "containerPort": config.listen.port}
    ]
    grace = pod_of(objects)["spec"]["terminationGracePeriodSeconds"]
    assert grace == 5 + config.timeouts.drain_s + 10
    annotations = only(objects, "Ingress")["metadata"]["annotations"]
    patience = max(config.timeouts.first_byte_s, config.timeouts.idle_s) + 10
    attributes = annotations["alb.ingress.kubernetes.io/load-balancer-attributes"]
    assert attributes == f"idle_timeout.timeout_seconds={patience:.0f}"
    admin = rendered(
        charts, "alb", "--set", "config.admin.host=::", "--set", "adminService.enabled=true"
    )
    assert only(admin, "Service", "rel-warmroute-admin")["spec"]["ports"][0]["port"] == (
        config.admin.port
    )


def test_a_changed_configuration_rolls_the_pods_only_without_live_reload(charts):
    live = rendered(charts, "rolled", "--set", "liveReload=true")
    assert pod_of(live)["metadata"]["annotations"] == {"example.com/team": "inference"}
    changed = ("--set", "config.health.interval_s=3")
    assert pod_of(rendered(charts, "rolled", "--set", "liveReload=true", *changed)) == pod_of(live)

    rolled = rendered(charts, "rolled")
    text = only(rolled, "ConfigMap")["data"]["gateway.yaml"]
    checksum = pod_of(rolled)["metadata"]["annotations"]["checksum/warmroute-config"]
    assert checksum == hashlib.sha256(text.encode()).hexdigest()
    assert pod_of(rendered(charts, "rolled", *changed)) != pod_of(rolled)
    # By subPath the file stays as it is, so that the old pods do not change on their way out.
    assert container_of(rolled)["volumeMounts"][0]["subPath"] == "gateway.yaml"


# Rights.


def rules(objects: list[dict]) -> dict[str, list]:
    return {
        o["metadata"]["namespace"]: [
            (r["apiGroups"], r["resources"], r["verbs"]) for r in o["rules"]
        ]
        for o in objects
        if o["kind"] == "Role"
    }


SLICES = (["discovery.k8s.io"], ["endpointslices"], ["list", "watch"])
PODS = ([""], ["pods"], ["list", "watch"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("static", {}),
        ("text", {}),
        ("service", {NAMESPACE: [SLICES]}),
        ("selector", {"inference": [SLICES, PODS], "spot": [SLICES]}),
        ("everything", {NAMESPACE: [PODS]}),
        ("sidecar", {"inference": [SLICES]}),
    ],
)
def test_discovery_gets_the_rights_it_needs_where_it_needs_them(charts, name: str, expected: dict):
    objects = rendered(charts, name)
    assert rules(objects) == expected
    account = {
        "kind": "ServiceAccount",
        "name": "app" if name == "sidecar" else "rel-warmroute",
        "namespace": NAMESPACE,
    }
    bindings = [o for o in objects if o["kind"] == "RoleBinding"]
    assert {b["metadata"]["namespace"] for b in bindings} == expected.keys()
    assert all(b["subjects"] == [account] for b in bindings)
    assert not {"ClusterRole", "ClusterRoleBinding"} & {o["kind"] for o in objects}


@pytest.mark.parametrize(("name", "needed"), [("static", False), ("service", True)])
def test_a_token_is_mounted_only_for_discovery(charts, name: str, needed: bool):
    objects = rendered(charts, name)
    assert pod_of(objects)["spec"]["automountServiceAccountToken"] is needed
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False


# Ways in.


def test_the_admin_port_is_closed_unless_opened_twice(charts):
    objects = rendered(charts, "static")
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "Service"] == ["rel-warmroute"]
    assert [p["containerPort"] for p in container_of(objects)["ports"]] == [8080]
    said = charts.run(
        "helm",
        "template",
        CHART,
        "-f",
        values("static"),
        "--set",
        "adminService.enabled=true",
        fails=True,
    )
    assert "config.admin.host" in said


def test_the_admin_service_stays_inside_the_cluster(charts):
    objects = rendered(charts, "everything")
    assert only(objects, "Service", "rel-warmroute")["spec"]["type"] == "LoadBalancer"
    assert only(objects, "Service", "rel-warmroute-admin")["spec"]["type"] == "ClusterIP"


def test_services_and_the_monitor_find_what_they_name(charts):
    objects = rendered(charts, "everything")
    labels = pod_of(objects)["metadata"]["labels"]
    ports = {p["name"] for p in container_of(objects)["ports"]}
    services = [o for o in objects if o["kind"] == "Service"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= ports
    monitor = only(objects, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (found,) = (s for s in services if wanted <= s["metadata"]["labels"].items())
    assert found["metadata"]["name"] == "rel-warmroute-admin"
    assert monitor["endpoints"][0]["port"] == found["spec"]["ports"][0]["name"]


def test_an_ingress_does_not_buffer_and_outwaits_the_gateway(charts):
    ingress = only(rendered(charts, "everything"), "Ingress")
    prefix = "nginx.ingress.kubernetes.io/"
    given = {k.removeprefix(prefix): v for k, v in ingress["metadata"]["annotations"].items()}
    assert given == {
        "proxy-buffering": "off",
        "proxy-request-buffering": "off",
        "proxy-next-upstream": "off",
        "proxy-send-timeout": "910",  # first_byte_s of 900 and 10
        "proxy-read-timeout": "1000",  # one's own annotation wins
        "proxy-body-size": "4194304",
    }


def test_replicas_are_reachable_by_the_gateway_alone(charts):
    objects = rendered(charts, "everything")
    policy = only(objects, "NetworkPolicy", "rel-warmroute-replicas-0")
    assert policy["metadata"]["namespace"] == "inference"
    assert policy["spec"]["podSelector"] == {"matchLabels": {"app": "qwen3-8b"}}
    own, also = policy["spec"]["ingress"]
    assert [p["port"] for p in own["ports"]] == [8000, 5557, 5558]
    (peer,) = own["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    labels = pod_of(objects)["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert also["ports"] == [{"port": 8000}]


def test_without_peers_no_one_reaches_the_admin_port(charts):
    more = ("--set", "networkPolicy.enabled=true", "--set", "config.admin.host=0.0.0.0")
    policy = only(rendered(charts, "static", *more), "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 8080}]}]


def test_an_autoscaler_alone_sets_the_number_of_gateways(charts):
    objects = rendered(charts, "everything")
    assert "replicas" not in only(objects, "Deployment")["spec"]
    target = only(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == only(objects, "Deployment")["metadata"]["name"]


# Sidecars.

APP = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "app"},
    "spec": {
        "selector": {"matchLabels": {"app": "app"}},
        "template": {
            "metadata": {"labels": {"app": "app"}},
            "spec": {
                "initContainers": [{"name": "migrate", "image": "app:1"}],
                "containers": [{"name": "app", "image": "app:1"}],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        },
    },
}


def test_sidecar_mode_renders_no_gateway_of_its_own(charts):
    kinds = sorted(o["kind"] for o in rendered(charts, "sidecar"))
    assert kinds == ["ConfigMap", "ConfigMap", "Role", "RoleBinding"]


@pytest.mark.parametrize("name", ["sidecar", "sidecar_rolled"])
def test_the_patch_puts_the_gateway_into_any_deployment_once(charts, name: str, tmp_path: Path):
    app, patch = tmp_path / "app.yaml", tmp_path / "patch.yaml"
    app.write_text(yaml.safe_dump(APP))
    data = only(rendered(charts, name), "ConfigMap", "rel-warmroute-sidecar")["data"]
    patch.write_text(data["patch.yaml"])
    for _ in range(2):  # the second time nothing changes
        text = charts.run(
            "kubectl", "patch", "--local", "-f", app, "--patch-file", patch, "-o", "yaml"
        )
        app.write_text(text)
    patched = yaml.safe_load(text)
    assert_valid([patched])
    pod = patched["spec"]["template"]["spec"]
    assert [c["name"] for c in pod["containers"]] == ["app"]
    by_name = {c["name"]: c for c in pod["initContainers"]}
    assert sorted(by_name) == ["migrate", "warmroute"]
    assert by_name["warmroute"]["restartPolicy"] == "Always"
    mounted = {m["name"] for m in by_name["warmroute"]["volumeMounts"]}
    assert mounted | {"data"} == {v["name"] for v in pod["volumes"]}
    annotations = patched["spec"]["template"]["metadata"].get("annotations", {})
    assert ("checksum/warmroute-config" in annotations) == (name == "sidecar_rolled")


def test_the_kubelet_cannot_reach_loopback_so_probes_ask_from_inside(charts):
    patch = only(rendered(charts, "sidecar"), "ConfigMap", "rel-warmroute-sidecar")["data"]
    (container,) = yaml.safe_load(patch["patch.yaml"])["spec"]["template"]["spec"]["initContainers"]
    python, flag, program = container["readinessProbe"]["exec"]["command"]
    assert (python, flag) == ("python", "-c")
    compile(program, "probe", "exec")
    assert "http://127.0.0.1:8181/readyz" in program


def test_the_example_application_carries_the_gateway(charts, tmp_path: Path):
    shutil.copytree(CHART.parent, tmp_path / "helm")
    example = tmp_path / "helm/examples/app-with-sidecar"
    charts.run("helm", "dependency", "build", example)
    objects = charts.render(chart=example)
    assert_valid([o for o in objects if o["kind"] != "ServiceAccount"])
    pod = pod_of(objects)["spec"]
    (gateway,) = pod["initContainers"]
    assert gateway["restartPolicy"] == "Always"
    config_map = only(objects, "ConfigMap")  # and no patch
    assert pod["volumes"][0]["configMap"]["name"] == config_map["metadata"]["name"]
    assert only(objects, "RoleBinding")["subjects"][0]["name"] == pod["serviceAccountName"]
    file = tmp_path / "gateway.yaml"
    file.write_text(config_map["data"]["gateway.yaml"])
    assert check_file(file, {}, io.StringIO()) == EXIT_OK


# What is refused, and with which words.


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("static", ["config=null"], "config: required"),
        ("text", ["config.models[0].name=x"], "either config or configText"),
        ("static", ["config.listen.port=${PORT}"], "config.listen.port: must be a number"),
        ("static", ["config.listen.port=0"], "config.listen.port: 0 lets the system choose"),
        ("static", ["config.timeouts.drain_s=${D}"], "config.timeouts.drain_s: must be a number"),
        ("static", ["config.listen.host=127.0.0.1"], "serves sidecars only"),
        ("static", ["serviceMonitor.enabled=true"], "needs adminService.enabled"),
        ("static", ["replicas=3"], "additional properties 'replicas' not allowed"),
        ("static", ["probes.liveness.period=3"], "additional properties 'period' not allowed"),
        ("static", ["ingress.enabled=true"], "/ingress/hosts"),
        ("sidecar", ["serviceAccount.name="], "serviceAccount.name: in sidecar mode"),
        ("sidecar", ["ingress.enabled=true", "ingress.hosts={a}"], "/ingress/enabled"),
        ("text", ["configText=a: [b"], "configText: "),
    ],
)
def test_what_cannot_work_is_refused(charts, name: str, settings: list[str], says: str):
    flags = [word for setting in settings for word in ("--set", setting)]
    said = charts.run("helm", "template", CHART, "-f", values(name), *flags, fails=True)
    assert says in said


def test_every_value_is_in_the_schema():
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert schema["properties"].keys() - {"global"} == defaults.keys()


# Pages.


def yaml_blocks(page: Path) -> list[dict]:
    blocks = re.findall(
        r"^ *```yaml\n(.*?)^ *```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [yaml.safe_load(textwrap.dedent(block)) for block in blocks]


def test_the_values_in_the_how_to_work(charts, tmp_path: Path):
    (block,) = yaml_blocks(ROOT / "docs/deploy-kubernetes.md")
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(block))
    objects = charts.render("-f", file)
    assert_valid(objects)
    assert list(rules(objects)) == ["inference"]
    assert check_file(written(objects, tmp_path), {}, io.StringIO()) == EXIT_OK


def test_the_tokenizer_example_of_the_readme_is_the_one_that_is_tested():
    (block,) = yaml_blocks(CHART / "README.md")
    tested = yaml.safe_load(values("tokenizer_init").read_text("utf-8"))
    assert block.items() <= tested.items()


def test_the_grace_in_the_readme_is_the_default(charts):
    grace = pod_of(rendered(charts, "static"))["spec"]["terminationGracePeriodSeconds"]
    assert f"{grace} s with the defaults" in (CHART / "README.md").read_text("utf-8")
