"""A libnvidia-ml.so.1 that a test compiles from C (``fake_nvml.c``) and controls through a file that both map.

The real pynvml loads it in the measuring process, by ``LD_LIBRARY_PATH``.
"""

import ctypes
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
CALLS = re.findall(r"^  X\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
GIB = 1024**3

NOT_SUPPORTED, NOT_LOADED, NO_PERMISSION, STALE, UNKNOWN = 3, 9, 4, 18, 999


class Part(ctypes.Structure):
    """A MIG device, as in the C file."""

    gpu_instance: int
    graphics: int
    used: int
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("gpu_instance", "compute_instance", "graphics", "present")),
        ("total", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
    )


class Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("sm", ctypes.c_uint32), ("memory", ctypes.c_uint64))


_NUMBERS = (
    "minor lost mig gpm utilization memory_utilization temperature power fan encoder decoder sm_clock memory_clock "
    "hanging hung process_count xid xid_count sample_count peak recovery"
).split()


class Gpu(ctypes.Structure):
    """A GPU, as in the C file; all fields may be changed while it is measured."""

    lost: int
    mig: int
    minor: int
    hanging: int
    hung: int
    utilization: int
    used: int
    xid: int
    xid_count: int
    sample_time: int
    peak: int
    recovery: int
    process_count: int
    process: ctypes.Array[Process]
    part: ctypes.Array[Part]
    result: ctypes.Array[ctypes.c_int32]
    asked: ctypes.Array[ctypes.c_uint32]
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("pci", ctypes.c_char * 32),
        *((name, ctypes.c_uint32) for name in _NUMBERS),
        *((name, ctypes.c_uint64) for name in ("total", "used", "reserved", "energy", "limits", "sample_time")),
        ("result", ctypes.c_int32 * 64),
        ("asked", ctypes.c_uint32 * 64),
        ("process", Process * 8),
        ("part", Part * 8),
    )

    def hang(self, call: str) -> None:
        """Let the next ``call`` about this GPU hang; an empty name lets it continue. ``hung`` counts calls that hung."""
        self.hanging = CALLS.index(call) + 1 if call else 0

    def fail(self, call: str, code: int = NOT_SUPPORTED) -> None:
        self.result[CALLS.index(call)] = code

    def count(self, call: str) -> int:
        """Number of times that ``call`` was made about this GPU."""
        return int(self.asked[CALLS.index(call)])

    def run(self, *processes: tuple[int, int, int]) -> None:
        """Set processes with pid, percent of the SMs and bytes of memory."""
        for place, (pid, sm, memory) in enumerate(processes):
            self.process[place] = Process(pid, sm, memory)
        self.process_count = len(processes)

    def divide(self, *profiles: tuple[str, int, int]) -> None:
        """Turn MIG on, with MIG devices by profile, percent of graphics activity and bytes of memory used."""
        self.mig = 1
        for place, (profile, graphics, used) in enumerate(profiles):
            total = int(profile.partition(".")[2].removesuffix("gb")) * GIB
            uuid = f"MIG-{self.minor}-{place}".encode()
            name = b"NVIDIA H100 80GB HBM3 MIG " + profile.encode()
            self.part[place] = Part(place + 3, 0, graphics, 1, total, used, uuid, name)


class State(ctypes.Structure):
    """The whole file. ``opened`` and ``closed`` count how often the library was initialised and shut down."""

    init_result: int
    gpu_count: int
    hang_init: int
    opened: int
    closed: int
    gpu: ctypes.Array[Gpu]
    _fields_ = (
        ("init_result", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("gpu_count", "hang_init", "opened", "closed")),
        ("gpu", Gpu * 16),
    )


class FakeNvml:
    """A library in ``folder`` and its state: ``count`` idle Hopper GPUs."""

    def __init__(self, library: Path, folder: Path, count: int) -> None:
        self._library, self._folder = library, folder
        path = folder / "state"
        path.write_bytes(bytes(ctypes.sizeof(State)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._memory)
        self.state.gpu_count = count
        self.environment: Mapping[str, str] = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(path)}
        for number in range(count):
            self.gpu[number] = _gpu(number)
        self.install()

    @property
    def gpu(self) -> "ctypes.Array[Gpu]":
        return self.state.gpu

    def install(self) -> None:
        shutil.copy(self._library, self._folder / "libnvidia-ml.so.1")

    def uninstall(self) -> None:
        (self._folder / "libnvidia-ml.so.1").unlink()


def _gpu(number: int) -> Gpu:
    uuid = f"GPU-00000000-0000-4000-8000-{number:012d}".encode()
    gpu = Gpu(uuid, b"NVIDIA H100 80GB HBM3", f"00000000:{number + 1:02X}:00.0".encode())
    values = {"minor": number, "gpm": 1, "temperature": 34, "power": 71000, "sm_clock": 345, "memory_clock": 2619, "limits": 1}
    values |= {"total": 80 * GIB, "reserved": GIB, "energy": 5000}
    for name, value in values.items():
        setattr(gpu, name, value)
    gpu.fail("nvmlDeviceGetFanSpeed")
    return gpu


def build(folder: Path, *flags: str) -> Path:
    """Compile the library. ``-DBEFORE_HOPPER`` leaves out functions that old drivers do not have."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler (cc) for the fake libnvidia-ml.so.1; install one, such as gcc")
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        f"-Wl,-soname,{library.name}",
        *flags,
        "-o",
        str(library),
        str(SOURCE),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
