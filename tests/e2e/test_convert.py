"""Manifests of 2018 on a current API server: refused as they are, accepted without a warning once they are converted."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.e2e.stage import Json, Stage, stage
from tests.embedded.kubectl_building import kubectl

from gpuscaler.converting.converter import convert
from gpuscaler.converting.reading import read
from gpuscaler.converting.writing import write

pytestmark = pytest.mark.e2e

OLD = (Path(__file__).parents[2] / "docs" / "examples" / "hpa-of-2018.yaml").read_text(encoding="utf-8")
#: Objects and fields that other old manifests have.
MORE = """
{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: nightly}, spec: {schedule: "0 1 * * *", jobTemplate: {spec: {template: {spec:
  {restartPolicy: Never, nodeSelector: {gpu: true}, containers: [{name: c, image: x, env: [{name: N, value: 1}]}]}}}}}}
---
{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}}
---
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: web}
spec:
  backend: {serviceName: rest, servicePort: http}
  rules: [{host: a.example, http: {paths: [{backend: {serviceName: web, servicePort: 80}}]}}]
---
{apiVersion: apps/v1beta1, kind: StatefulSet, metadata: {name: db}, spec: {template: {metadata: {labels: {a: db}}, spec: {containers:
  [{name: c, image: x}]}}}}
---
{apiVersion: extensions/v1beta1, kind: DaemonSet, metadata: {name: plugin}, spec: {templateGeneration: 3, template: {metadata: {labels:
  {a: plugin}}, spec: {containers: [{name: c, image: x}]}}}}
---
apiVersion: autoscaling/v2beta1
kind: HorizontalPodAutoscaler
metadata: {name: all}
spec:
  scaleTargetRef: {apiVersion: extensions/v1beta1, kind: Deployment, name: web}
  maxReplicas: 3
  metrics:
    - {type: Resource, resource: {name: cpu, targetAverageUtilization: 50}}
    - {type: Object, object: {metricName: hits, target: {apiVersion: extensions/v1beta1, kind: Ingress, name: web}, targetValue: 2k}}
    - {type: External, external: {metricName: queue, metricSelector: {matchLabels: {q: jobs}}, targetAverageValue: 30}}
---
apiVersion: autoscaling/v1
kind: HorizontalPodAutoscaler
metadata:
  name: first
  annotations:
    autoscaling.alpha.kubernetes.io/metrics: '[{"type":"Pods","pods":{"metricName":"duty_cycle_current","targetAverageValue":"40"}}]'
    autoscaling.alpha.kubernetes.io/behavior: '{"ScaleDown":{"stabilizationWindowSeconds":60}}'
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, targetCPUUtilizationPercentage: 70}
"""


def apply(made: Stage, manifest: str) -> "subprocess.CompletedProcess[str]":
    words = ("apply", "--server-side", "--validate=strict", "--filename", "-", "--kubeconfig", str(made.plane.kubeconfig))
    command = (str(kubectl()), "--cache-dir", str(made.folder / "kubectl"), *words)
    return subprocess.run(command, input=manifest, capture_output=True, text=True, check=False)


async def _play() -> tuple[str, "subprocess.CompletedProcess[str]", list[Json]]:
    objects = [*read(OLD), *read(MORE)]
    converted, _ = convert(objects, image="gpuscaler:1")
    async with stage("convert") as made:
        refused = await asyncio.to_thread(apply, made, write(objects))
        taken = await asyncio.to_thread(apply, made, write(converted))
    return refused.stderr, taken, converted


def test_manifests_of_2018_are_accepted_once_they_are_converted() -> None:
    refused, taken, converted = asyncio.run(_play())

    assert 'no matches for kind "HorizontalPodAutoscaler" in version "autoscaling/v2beta1"' in refused
    assert taken.stderr == ""
    assert taken.returncode == 0
    assert taken.stdout.count("serverside-applied") == len(converted)
