"""Accelerators among resources: which names mean whole devices, and how many devices an amount is."""

from gpuscaler.model.pods import Resources

#: Resources of which one is one physical accelerator.
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "aws.amazon.com/neurondevice", "google.com/tpu")
#: Thousandths of GPUs, as traces divide them.
GPU_MILLI = "gpuscaler.io/gpu-milli"
_NONE = (0,) * len(ACCELERATORS)


def gpus_in(resources: Resources) -> int:
    """Physical accelerators among ``resources``; those that a trace divides are counted by the device."""
    whole = sum(map(resources.get, ACCELERATORS, _NONE))
    return whole or resources.get(GPU_MILLI, 0) // 1000
