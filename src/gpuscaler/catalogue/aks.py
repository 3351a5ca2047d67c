"""What AKS's nodes leave for pods: the reservation rules of AKS 1.29 and later.

Source: AKS's page "Node resource reservations"; the hypervisor's share is Karpenter's default for Azure.
"""

from typing import Final

from gpuscaler.model.pods import Resources

MIB: Final = 2**20
#: The share of memory reserved by the hypervisor and the kernel.
OVERHEAD: Final = 0.075
#: The number of pods and the size of the system disk in GiB that are assumed if a pool does not give its own.
DEFAULT_PODS, DEFAULT_DISK_GIB = 250, 128
#: KiB that the file system of a system disk of 128 GiB shows.
_FILE_SYSTEM_KIB: Final = 129_886_128


def allocatable(vcpu: int, memory_mib: int, *, pods: int = DEFAULT_PODS, disk_gib: int = DEFAULT_DISK_GIB) -> Resources:
    """Allocatable resources of a node with ``vcpu`` CPUs and ``memory_mib`` MiB of advertised memory, without GPUs.

    Reserved: 60 m for one core, 100 for two, 140 for four, then 10 for each more; the lesser of 20 MB a pod + 50 MB and a quarter of
    the memory; 100 MiB before eviction; a tenth of the disk.
    """
    cpu = {1: 60, 2: 100}.get(vcpu, 140 + 10 * max(vcpu - 4, 0))
    usable = memory_mib * (1 - OVERHEAD)
    reserved = min((20e6 * pods + 50e6) / MIB, memory_mib / 4)
    disk = int(_FILE_SYSTEM_KIB * disk_gib / DEFAULT_DISK_GIB / 1024 * 0.9)
    return {
        "cpu": vcpu * 1000 - cpu,
        "memory": max(int(usable - reserved - 100), 0) * MIB,
        "ephemeral-storage": disk * MIB,
        "pods": pods,
    }
