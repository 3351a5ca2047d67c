"""The library with types, and its errors sorted by what is to be done about them."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA ships no types; nothing else imports it

#: What pynvml gives and takes: handles, structures with the fields that NVML's manual names. Its functions may raise :data:`NvmlError`.
nvml: Any = pynvml
NvmlError: type[Exception] = pynvml.NVMLError
Handle = Any

#: The device, this driver or this library will not answer that call whenever it is asked, or not to us.
_UNSUPPORTED = frozenset(
    [
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        nvml.NVML_ERROR_DEPRECATED,
    ]
)
_LOST = frozenset([nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND])
_CLOSED = frozenset([nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED])


def code(error: Exception) -> int:
    """NVML's number of an error that a call raised."""
    number = getattr(error, "value", nvml.NVML_ERROR_UNKNOWN)
    return int(number)


def is_unsupported(error: Exception) -> bool:
    return code(error) in _UNSUPPORTED


def is_lost(error: Exception) -> bool:
    """The GPU fell off the bus, or is no longer there."""
    return code(error) in _LOST


def is_closed(error: Exception) -> bool:
    """The driver was unloaded underneath: all handles are void."""
    return code(error) in _CLOSED


def is_stale(error: Exception) -> bool:
    """The driver was replaced by another version while the library of the old one is loaded."""
    return code(error) == int(nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def raise_if_general(error: Exception) -> None:
    """Raise errors anew that are about more than the one question: the GPU, the driver or the library is gone."""
    if is_lost(error) or is_closed(error) or is_stale(error):
        raise error


@contextmanager
def tolerated() -> Iterator[None]:
    """An error of NVML ends the block; it leaves it only where it is about more than the block's question."""
    try:
        yield
    except NvmlError as error:
        raise_if_general(error)


def text_of(ask: Callable[[], Any]) -> str:
    """What a call answers as text; empty where it is not supported."""
    try:
        answer = ask()
    except NvmlError:
        return ""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


def address(handle: Handle) -> int:
    """What makes a handle equal to another: events come with a handle of their own."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
