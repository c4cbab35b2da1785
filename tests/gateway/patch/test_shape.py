"""Objects that no cluster would take: `patch-deployment` refuses them and says where."""

import copy

import pytest
import yaml

from gateway.cli import main
from gateway.patch.objects import patch
from gateway.patch.settings import CannotPatch, Settings
from tests.gateway.patch.test_patch import DEPLOYMENT, ENDPOINT

WORKLOAD = list(yaml.safe_load_all(DEPLOYMENT))[1]
OBJECTS = (WORKLOAD, yaml.safe_load(ENDPOINT))
LEFT_OUT = object()
OTHERS = (LEFT_OUT, None, 3, "text", [], {}, [None], ["x"], {"a": 1}, [{}], [{"name": "z"}], True)


def places(node, path=()):
    """Yield the path of everything below a node."""
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(node[key], (*path, key))


def changed(thing, path, new):
    thing = copy.deepcopy(thing)
    parent = thing
    for key in path[:-1]:
        parent = parent[key]
    if new is LEFT_OUT:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return thing


def test_anything_in_any_place_is_patched_or_refused():
    num_refused = 0
    for thing in OBJECTS:
        for path in places(thing["spec"], ("spec",)):
            for new in OTHERS:
                try:
                    patch(changed(thing, path, new), Settings())
                except CannotPatch:
                    num_refused += 1
    assert num_refused > 100


@pytest.mark.parametrize(
    ("path", "new", "why"),
    [
        (("metadata", "name"), LEFT_OUT, "required field `name` - at `$.metadata`"),
        (("metadata",), 3, "$.metadata"),
        (
            ("spec", "template", "spec", "containers", 0, "env"),
            {"HF_HOME": "/cache"},
            "$.spec.template.spec.containers[0].env",
        ),
        (("spec", "template", "spec", "containers", 0, "volumeMounts", 0, "mountPath"), None,
         "volumeMounts[0].mountPath"),
        (("spec", "template", "spec"), LEFT_OUT, "required field `spec` - at `$.spec.template`"),
    ],
)  # fmt: skip
def test_the_place_is_named(tmp_path, capsys, path, new, why):
    file = tmp_path / "engines.yaml"
    file.write_text(yaml.safe_dump(changed(WORKLOAD, path, new)))
    assert main(["patch-deployment", str(file)]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert str(file) in said


def test_an_empty_section_is_one_that_is_left_out():
    one = patch(changed(OBJECTS[1], ("spec", "kvCacheSpec"), None), Settings())
    assert one.wanted["spec"]["kvCacheSpec"] == {"enableL1Cache": True}


def test_an_object_of_another_name_is_left_alone_whatever_its_form(tmp_path, capsys):
    file = tmp_path / "engines.yaml"
    broken = changed(WORKLOAD, ("metadata",), 3)
    file.write_text(yaml.safe_dump_all([broken, WORKLOAD], sort_keys=False))
    assert main(["patch-deployment", str(file), "--name", "engines"]) == 0
    assert next(yaml.safe_load_all(capsys.readouterr().out)) == broken
