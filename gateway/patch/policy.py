"""The same patch as objects that apply it to pods: what no operator can render away. Pure.

The policy changes pods as they are created, not the Deployment: the operator owns that, and would
answer each change with one of its own.
"""

from __future__ import annotations

from typing import Any

from gateway.patch.container import Plain, pool_mount, pool_variables, pool_volume
from gateway.patch.objects import Target
from gateway.patch.settings import Settings

# Where nothing says a namespace, kubectl puts it there.
_DEFAULT_NAMESPACE = "default"
_HOW_MANY = "{{ request.object.spec.containers[?name=='NAME'] | length(@) }}"


def pod_patch(target: Target, settings: Settings, present: list[Plain]) -> Plain:
    """Return what is to be merged into the spec of a pod.

    Args:
        target: Which container.
        settings: What to write.
        present: Variables that the object sets itself, whose values stay.
    """
    variables = pool_variables(present, settings)
    ours = {one["name"] for one in pool_variables([], settings)}
    return {
        "volumes": [pool_volume(settings)],
        "containers": [
            {
                "name": target.container,
                "env": [one for one in variables if one["name"] in ours],
                "volumeMounts": [pool_mount(settings)],
            }
        ],
    }


def merge_patch(target: Target, settings: Settings, present: list[Plain]) -> Plain:
    """Return a patch for `kubectl patch deployment NAME --patch-file FILE` (strategic merge)."""
    return {"spec": {"template": {"spec": pod_patch(target, settings, present)}}}


def kyverno(target: Target, settings: Settings, present: list[Plain]) -> Plain:
    """Return a Kyverno ClusterPolicy that patches the pods of a target as they are created.

    A pod without the container is left as it is. Where Kyverno does not answer pods start without
    the pool: slower, and not down. --verify tells.
    """
    spec = pod_patch(target, settings, present)
    (engine,) = spec["containers"]
    anchored = {"(name)": engine.pop("name"), **engine}
    anchored["env"] = [_escaped(one) for one in engine["env"]]
    match: dict[str, Any] = {
        "kinds": ["Pod"],
        "operations": ["CREATE"],
        "namespaces": [target.namespace or _DEFAULT_NAMESPACE],
        "selector": {"matchLabels": dict(target.labels)},
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": f"l2-pool-{target.namespace or _DEFAULT_NAMESPACE}-{target.name}",
            # Pods only: no rules of Kyverno's own for the Deployments that make them.
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {
            "background": False,
            "webhookConfiguration": {"failurePolicy": "Ignore"},
            "rules": [
                {
                    "name": "mount-and-name-the-pool",
                    "match": {"any": [{"resources": match}]},
                    # Other pods may have the label: a router, a job.
                    "preconditions": {
                        "all": [
                            {
                                "key": _HOW_MANY.replace("NAME", target.container),
                                "operator": "Equals",
                                "value": 1,
                            }
                        ]
                    },
                    "mutate": {
                        "patchStrategicMerge": {
                            "spec": {"volumes": spec["volumes"], "containers": [anchored]}
                        }
                    },
                }
            ],
        },
    }


def _escaped(variable: Plain) -> Plain:
    # Kyverno takes $(...) for a reference of its own (kyverno/kyverno#2413); what kubelet is to
    # expand has a backslash before it, which Kyverno takes away.
    if "value" not in variable:
        return variable
    return {**variable, "value": variable["value"].replace("$(", "\\$(")}
