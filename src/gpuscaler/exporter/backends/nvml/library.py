"""The NVML library with types, and its errors classified by how to handle them."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA ships no types; nothing else imports it

#: pynvml passes handles, and structures with the fields from NVML's manual. Its functions may raise :data:`NvmlError`.
nvml: Any = pynvml
NvmlError: type[Exception] = pynvml.NVMLError
Handle = Any

#: Errors that stay: the device, this driver or this library never answers that call, or not with our permissions.
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
    """Whether the GPU fell off the bus, or is no longer there."""
    return code(error) in _LOST


def is_closed(error: Exception) -> bool:
    """Whether the driver was unloaded: all handles are invalid."""
    return code(error) in _CLOSED


def is_stale(error: Exception) -> bool:
    """Whether the driver was replaced by another version while the library of the old one is loaded."""
    return code(error) == int(nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def raise_if_general(error: Exception) -> None:
    """Raise the error again if it concerns more than this one call: the GPU, the driver or the library is gone."""
    if is_lost(error) or is_closed(error) or is_stale(error):
        raise error


@contextmanager
def tolerated() -> Iterator[None]:
    """Suppress NVML errors that concern only the calls in the block; such an error ends the block. Others are raised."""
    try:
        yield
    except NvmlError as error:
        raise_if_general(error)


def text_of(ask: Callable[[], Any]) -> str:
    """The result of a call as text; empty if it is not supported."""
    try:
        answer = ask()
    except NvmlError:
        return ""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


def address(handle: Handle) -> int:
    """The address behind a handle, to compare handles: each event comes with a new handle object."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
