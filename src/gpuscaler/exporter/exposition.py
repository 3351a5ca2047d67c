"""The page that Prometheus reads, written as text directly: a registry of metric objects takes ten times as long for the same lines.

The pod labels depend on the number of containers that have the device. If one container has it, all figures carry its labels. If several
have it, the six ``nvidia_gpu_*`` metrics are written once for each container, with the container's own duty cycle and memory if processes
can be told apart; the other figures are written once, without a pod, since they belong to no single container. If none has it, no figure
has pod labels.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gpuscaler.exporter.fields import FIELDS, WINDOWS, Field
from gpuscaler.exporter.measured import MeasuredDevice, Measurements
from gpuscaler.exporter.parts import Attribution, Device, Instance, Owner, Process
from gpuscaler.exporter.xids import action, severity

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHARED_PREFIX = "nvidia_gpu_"
_SPLIT = frozenset({"duty_cycle", "memory_used_bytes"})


@dataclass(slots=True)
class Page:
    """Lines by metric: all lines of a metric must be adjacent."""

    lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, metric: str, help: str, kind: str = "gauge") -> list[str]:  # noqa: A002  # the format's own word
        """Add a metric if it is new; return its lines, to append samples to."""
        lines = self.lines.get(metric)
        if lines is None:
            lines = self.lines[metric] = [f"# HELP {metric} {help}.", f"# TYPE {metric} {kind}"]
        return lines

    def text(self) -> bytes:
        return "".join(f"{line}\n" for lines in self.lines.values() for line in lines).encode()


def add_devices(page: Page, measured: Measurements, attribution: Attribution, *, node: str, now: float) -> None:
    """Add the figures of each GPU and MIG device at ``now``, on the machine's monotonic clock."""
    for device in measured.current(now):
        labels = device_labels(device.device, device.instance, node)
        owners = attribution.owners.get(device.key, ())
        with_owner = labels + owner_labels(owners[0]) if len(owners) == 1 else labels
        _values(page, device, labels, with_owner=with_owner, owners=owners, by_process=attribution.processes)
        _windows(page, device, with_owner, now=now)
        _allocations(page, labels, owners)
        _processes(page, device.reading.processes or (), labels, owners=owners, by_process=attribution.processes)


def _values(
    page: Page, device: MeasuredDevice, labels: str, *, with_owner: str, owners: tuple[Owner, ...], by_process: Mapping[int, Owner] | None
) -> None:
    shared = len(owners) > 1
    for key, value in device.reading.values.items():
        field_and_labels = _field(key)
        if field_and_labels is None:
            continue
        field_, extra_labels = field_and_labels
        lines = page.add(field_.metric, field_.help, field_.kind)
        if shared and field_.metric.startswith(_SHARED_PREFIX):
            for owner in owners:
                share = own_share(key, device.reading.processes, owner, by_process)
                lines.append(f"{field_.metric}{{{labels}{owner_labels(owner)}}} {format_number(value if share is None else share)}")
        else:
            lines.append(f"{field_.metric}{{{with_owner}{extra_labels}}} {format_number(value)}")


@lru_cache(maxsize=1024)
def _field(key: str) -> tuple[Field, str] | None:
    """The field of a backend's key, and its labels with a comma before each; None if there is no such field."""
    name, *label_values = key.split(":")
    field_ = FIELDS.get(name)
    if field_ is None or len(label_values) != len(field_.labels):
        return None
    return field_, "".join(f',{label}="{value}"' for label, value in zip(field_.labels, label_values, strict=True))


def own_share(name: str, processes: Iterable[Process] | None, owner: Owner, by_process: Mapping[int, Owner] | None) -> float | None:
    """A container's own part of a figure of a shared device; None if unknown."""
    if name not in _SPLIT or processes is None or by_process is None:
        return None
    figures = [
        process.sm_percent if name == "duty_cycle" else process.memory_bytes
        for process in processes
        if (user := by_process.get(process.pid)) is not None and is_same_container(user, owner)
    ]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def is_same_container(owner: Owner, other: Owner) -> bool:
    """Whether both are the same container, as far as each is known."""
    pod = owner.uid == other.uid if owner.uid and other.uid else (owner.namespace, owner.pod) == (other.namespace, other.pod)
    return pod and (owner.container == other.container or not owner.container or not other.container)


def _windows(page: Page, device: MeasuredDevice, labels: str, *, now: float) -> None:
    for key, trail in device.trails.items():
        field_ = FIELDS[key]
        for seconds in WINDOWS:
            figures = trail.over(seconds, now=now)
            if figures is not None:
                for statistic, value in (("max", figures.maximum), ("mean", figures.mean)):
                    metric = f"{field_.windowed}_{statistic}"
                    lines = page.add(metric, f"{field_.help.removesuffix(', in percent')}: {statistic} over the window before the scrape")
                    lines.append(f'{metric}{{{labels},window="{seconds}s"}} {format_number(value * field_.scale)}')


def _allocations(page: Page, labels: str, owners: tuple[Owner, ...]) -> None:
    lines = page.add("gpuscaler_gpu_containers", "Containers that the device is allocated to")
    lines.append(f"gpuscaler_gpu_containers{{{labels}}} {len(owners)}")
    for owner in owners:
        lines = page.add("gpuscaler_gpu_allocation_info", "1 for each container that the device is allocated to")
        lines.append(f"gpuscaler_gpu_allocation_info{{{labels}{owner_labels(owner)}}} 1")


def _processes(
    page: Page, processes: Iterable[Process], device_labels_: str, *, owners: tuple[Owner, ...], by_process: Mapping[int, Owner] | None
) -> None:
    for process in processes:
        owner = (by_process or {}).get(process.pid)
        if owner is None and len(owners) == 1 and by_process is None:
            owner = owners[0]
        labels = f'{device_labels_}{owner_labels(owner) if owner else ""},pid="{process.pid}"'
        if process.memory_bytes is not None:
            lines = page.add("gpuscaler_gpu_process_memory_used_bytes", "Memory of the device that the process uses")
            lines.append(f"gpuscaler_gpu_process_memory_used_bytes{{{labels}}} {process.memory_bytes}")
        if process.sm_percent is not None:
            lines = page.add("gpuscaler_gpu_process_sm_ratio", "Share of the SMs that the process used since the previous sample")
            lines.append(f"gpuscaler_gpu_process_sm_ratio{{{labels}}} {format_number(process.sm_percent / 100)}")


def add_events(page: Page, measured: Measurements, *, node: str, epoch: float) -> None:
    """Add the XID errors since the exporter started; ``epoch`` plus a time of the monotonic clock is the time since the epoch.

    Errors of a GPU stay after the GPU is gone. The time of the last error is a separate metric, since Prometheus sees no increase in a
    counter that first appears with its first error.
    """
    names = {device.uuid: device for device in measured.devices}
    for (uuid, code), (count, at) in sorted(measured.events.items()):
        labels = device_labels(names.get(uuid) or Device(uuid, -1, -1, ""), None, node)
        labels = f'{labels},xid="{code}",severity="{severity(code)}",action="{action(code)}"'
        lines = page.add("gpuscaler_gpu_xid_errors_total", "Errors that the driver reported, by NVIDIA's XID number", "counter")
        lines.append(f"gpuscaler_gpu_xid_errors_total{{{labels}}} {count}")
        lines = page.add("gpuscaler_gpu_last_xid_error_timestamp_seconds", "Time at which the driver last reported such an error")
        lines.append(f"gpuscaler_gpu_last_xid_error_timestamp_seconds{{{labels}}} {format_number(round(epoch + at, 3))}")


@lru_cache(maxsize=1024)
def device_labels(device: Device, instance: Instance | None, node: str) -> str:
    """The labels of a device, without braces. ``minor_number`` and ``name`` of a MIG device are those of its GPU."""
    minor = "" if device.minor < 0 else str(device.minor)
    labels = {"node_name": node, "uuid": instance.uuid if instance else device.uuid, "minor_number": minor, "name": device.name}
    if instance:
        labels |= {"gpu_uuid": device.uuid, "gpu_instance": str(instance.gpu_instance), "profile": instance.profile}
    return ",".join(format_labels(labels))


@lru_cache(maxsize=4096)
def owner_labels(owner: Owner) -> str:
    """The labels of a container, with a comma before each. Empty ones are left out, which is the same for Prometheus."""
    labels = {"pod_name": owner.pod, "namespace_name": owner.namespace, "container_name": owner.container}
    return "".join(f",{label}" for label in format_labels(labels))


def format_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """Write labels in the exposition format."""
    for name, value in labels.items():
        if value:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            yield f'{name}="{escaped}"'


def format_number(value: float) -> str:
    """Write a value; integers have no fraction."""
    return format(value, ".15g")
