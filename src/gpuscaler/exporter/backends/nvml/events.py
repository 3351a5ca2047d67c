"""XID errors, as the driver reports them to registered listeners."""

import time
from collections.abc import Iterator

from gpuscaler.exporter.backends import Event
from gpuscaler.exporter.backends.nvml.library import Handle, NvmlError, address, nvml, raise_if_general, tolerated


class Events:
    """Listens to the GPUs that are added. Without permission, or on an old GPU, there are no events."""

    def __init__(self) -> None:
        self._set: Handle | None = None
        self._keys: dict[int, str] = {}
        with tolerated():
            self._set = nvml.nvmlEventSetCreate()

    def add(self, key: str, gpu: Handle) -> None:
        if self._set is not None and key not in self._keys.values():
            with tolerated():
                nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._set)
                self._keys[address(gpu)] = key

    def poll(self) -> Iterator[Event]:
        """Events since the last call; does not wait."""
        while self._keys:
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
            except NvmlError as error:
                raise_if_general(error)
                return
            key = self._keys.get(address(event.device))
            if key is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                yield Event(key, int(event.eventData), time.monotonic())

    def close(self) -> None:
        if self._set is not None:
            with tolerated():
                nvml.nvmlEventSetFree(self._set)
            self._set = None
            self._keys.clear()
