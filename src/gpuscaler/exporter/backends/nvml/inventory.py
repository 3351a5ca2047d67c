"""The GPUs and MIG devices of the machine, with the NVML handle of each."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from gpuscaler.exporter.backends.nvml.library import Handle, NvmlError, is_closed, is_stale, nvml, text_of, tolerated
from gpuscaler.exporter.parts import Device, Instance


class MigDevice(NamedTuple):
    """A MIG device with its handle."""

    instance: Instance
    handle: Handle


class Gpu(NamedTuple):
    """A GPU. ``handle`` is None if it fell off the bus; ``device`` is still known then. ``divided``: MIG is on, with or without parts."""

    device: Device
    handle: Handle | None
    divided: bool
    parts: tuple[MigDevice, ...]


def list_gpus(before: dict[int, Gpu]) -> dict[int, Gpu]:
    """The GPUs by NVML's numbers. A GPU that cannot be read is returned as it was ``before``, without a handle.

    Raises NVML's errors that concern all GPUs.
    """
    gpus = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus[number] = _gpu(number)
        except NvmlError as error:
            if is_closed(error) or is_stale(error):
                raise
            if number in before:
                gpus[number] = before[number]._replace(handle=None, parts=())
    return gpus


def _gpu(number: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    divided = False
    with tolerated():
        divided = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    parts = tuple(_parts(handle)) if divided else ()
    minor = text_of(lambda: nvml.nvmlDeviceGetMinorNumber(handle))
    device = Device(
        nvml.nvmlDeviceGetUUID(handle),
        number,
        int(minor) if minor else -1,
        text_of(lambda: nvml.nvmlDeviceGetName(handle)),
        text_of(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId),
        tuple(part.instance for part in parts),
    )
    return Gpu(device, handle, divided, parts)


def _parts(gpu: Handle) -> Iterator[MigDevice]:
    places = 0
    with tolerated():
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    for place in range(places):
        # NVML raises an error for places without a MIG device.
        with tolerated():
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            _, _, profile = text_of(partial(nvml.nvmlDeviceGetName, handle)).rpartition("MIG ")
            gpu_instance, compute_instance = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
            yield MigDevice(Instance(nvml.nvmlDeviceGetUUID(handle), gpu_instance, compute_instance, profile), handle)
