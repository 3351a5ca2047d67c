"""``python -m tests.charts.manifest`` regenerates deploy/gpuscaler.yaml from the chart, for installation without helm."""

import re

import yaml
from tests.charts.rendering import ROOT, text

FILE = ROOT / "deploy" / "gpuscaler.yaml"
VALUES = ROOT / "deploy" / "values.yaml"
NAMESPACE = "gpuscaler"
HEAD = f"""\
# Generated from charts/gpuscaler and deploy/values.yaml by `make manifest`. Before you apply it, push the image that the Dockerfile builds
# and set it below, and write your pools into the ConfigMap. It is for the simulated cloud, and has the permissions to simulate its nodes:
# for another cloud, render the chart with your own values.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    app.kubernetes.io/name: gpuscaler
    pod-security.kubernetes.io/enforce: restricted
"""
#: Labels that only objects of helm have.
HELMS = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)


def manifest() -> str:
    """Return all objects, their namespace first."""
    return HEAD + HELMS.sub("", text(yaml.safe_load(VALUES.read_text()), namespace=NAMESPACE))


if __name__ == "__main__":
    FILE.write_text(manifest())
