"""Makes the data files of ``gpuscaler.catalogue`` from ``../shared/data``. Run from the project's root: ``python tools/make_catalogue.py``.

Facts come from the source files and from the small tables below, each with its source. Nothing is guessed: types without GPU count or model
in the sources are left out (see ``LEFT_OUT``), and so are Alibaba's rows, whose prices are in yuan.
"""

import csv
import gzip
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuscaler.catalogue.aks import MIB, OVERHEAD, allocatable

SHARED = Path("../shared/data")
OUT = Path("src/gpuscaler/catalogue/data")

#: Sources, by the short name that the other files use.
SOURCES = {
    "catalogue-2026-08": "../shared/data/instance_catalog.csv.gz, compiled 2026-08: sizes as the providers' Karpenter modules list them",
    "azure-types-2026-03": "cluster-autoscaler azure_instance_types.go 2026-03-05, GPU model read from the size's name",
    "azure-sizes-doc": "cluster-autoscaler azure_instance_types.go 2026-03-05, corrected by Microsoft's page of the size series (2025)",
    "eks": "as Karpenter computes it for EKS: kubelet reservations, 7.5 % of memory for the hypervisor; 20 GiB volume",
    "aks-rule": "DERIVED by the reservation rules of AKS 1.29+ with 250 pods, 7.5 % of memory for the hypervisor, 128 GiB OS disk",
    "gke-rule": "DERIVED by the reservation rules of GKE with 110 pods, 7.5 % of memory for the hypervisor, 100 GiB boot disk",
    "aws-2026-07": "karpenter-provider-aws initial prices, generated 2026-07-20",
    "aws-ratio": "DERIVED: us-east-1 price 2026-07-20 x regional ratio of the family seen in SkyPilot catalog v7",
    "aws-spot": "DERIVED: on-demand x (1 - Spot Advisor savings %, 2025-07)",
    "azure-2026-06": "karpenter-provider-azure initial prices, generated 2026-06-18",
    "gcp-2026-08": "karpenter-provider-gcp initial prices 2026-08-03",
    "gcp-2026-07": "Cyclenerd pricing.yml 2026-07-30",
    "aws-zones-2026": "../shared/data/aws_gpu_offerings_by_az.csv.gz, 2026: which zones offer which GPU types",
}

#: The prefix of a source file's basis column -> our short name.
BASES = {
    "karpenter-provider-aws initial prices": "aws-2026-07",
    "DERIVED: us-east-1 price": "aws-ratio",
    "DERIVED: on-demand x": "aws-spot",
    "karpenter-provider-azure initial prices": "azure-2026-06",
    "karpenter-provider-gcp initial prices": "gcp-2026-08",
    "Cyclenerd pricing.yml": "gcp-2026-07",
}

#: Types that the sources cannot describe: fractions of a GPU whose advertised count is unknown, and unnamed models.
LEFT_OUT = ("g6f.", "gr6f.", "_V710_", "Standard_NV4as_v4", "Standard_NV8as_v4", "Standard_NV16as_v4", "Standard_NV32as_v4")

#: (cloud, model in the source, GPU memory in MiB or "" for any) -> name in ``nvidia.com/gpu.product``. GPU feature discovery takes it from
#: NVML and writes "-" for blanks; "" if no machine's label was seen.
PRODUCTS = {
    ("aws", "T4"): "Tesla-T4",
    ("aws", "T4G"): "NVIDIA-T4G",
    ("aws", "A10G"): "NVIDIA-A10G",
    ("aws", "L4"): "NVIDIA-L4",
    ("aws", "L40S"): "NVIDIA-L40S",
    ("aws", "V100"): "Tesla-V100-SXM2-32GB",
    ("aws", "A100"): "NVIDIA-A100-SXM4-40GB",
    ("aws", "H100"): "NVIDIA-H100-80GB-HBM3",
    ("aws", "H200"): "NVIDIA-H200",
    ("aws", "B200"): "NVIDIA-B200",
    ("aws", "B300"): "NVIDIA-B300-SXM6-AC",
    ("aws", "RTX-PRO-SERVER-6000"): "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    ("aws", "RTX-PRO-4500"): "NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition",
    ("aws", "RADEON-PRO-V520"): "",
    ("azure", "T4"): "Tesla-T4",
    ("azure", "M60"): "Tesla-M60",
    ("azure", "V100"): "Tesla-V100-PCIE-16GB",
    ("azure", "A10"): "NVIDIA-A10",
    ("azure", "A100-40GB"): "NVIDIA-A100-SXM4-40GB",
    ("azure", "A100-80GB"): "NVIDIA-A100-80GB-PCIe",
    ("azure", "H100-NVL"): "NVIDIA-H100-NVL",
    ("azure", "H100-SXM"): "NVIDIA-H100-80GB-HBM3",
    ("azure", "H200"): "NVIDIA-H200",
    ("azure", "MI300X"): "",
    ("gcp", "L4"): "NVIDIA-L4",
    ("gcp", "A100-40GB"): "NVIDIA-A100-SXM4-40GB",
    ("gcp", "A100-80GB"): "NVIDIA-A100-SXM4-80GB",
    ("gcp", "H100-80GB"): "NVIDIA-H100-80GB-HBM3",
    ("gcp", "RTX-PRO-6000"): "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}

#: Corrections to the source, by instance type. NVadsA10 v5 sells fractions of an A10 as virtual GPUs; ND40rs_v2 has 32 GB cards on
#: NVLink; the source counts no AMD GPUs.
CORRECTIONS: Mapping[str, Mapping[str, object]] = {
    "Standard_NV6ads_A10_v5": {"gpu_product": "NVIDIA-A10-4Q", "gpu_memory_mib": 4096},
    "Standard_NV12ads_A10_v5": {"gpu_product": "NVIDIA-A10-8Q", "gpu_memory_mib": 8192},
    "Standard_NV18ads_A10_v5": {"gpu_product": "NVIDIA-A10-12Q", "gpu_memory_mib": 12288},
    "Standard_NV36ads_A10_v5": {"gpu_product": "NVIDIA-A10-24Q"},
    "Standard_NV36adms_A10_v5": {"gpu_product": "NVIDIA-A10-24Q"},
    "Standard_NV72ads_A10_v5": {"gpu_product": "NVIDIA-A10-24Q"},
    "Standard_ND40rs_v2": {"gpu_product": "Tesla-V100-SXM2-32GB", "gpu_memory_mib": 32768},
    "Standard_ND96amsr_A100_v4": {"gpu_product": "NVIDIA-A100-SXM4-80GB"},
    "Standard_ND96is_MI300X_v5": {"gpus": 8},
    "Standard_ND96isr_MI300X_v5": {"gpus": 8},
}
AWS_80GB = {"p4de.24xlarge": "NVIDIA-A100-SXM4-80GB"}

#: Memory per GPU that NVML reports, in MiB, and so the value of ``nvidia.com/gpu.memory``; the clouds' own figures are the board's. Read
#: from nvidia-smi output that users published (driver 535 and later).
VISIBLE_MEMORY = {
    "Tesla-T4": 15360,
    "NVIDIA-A10": 23028,
    "NVIDIA-A10-24Q": 24512,
    "NVIDIA-A10G": 23028,
    "NVIDIA-L4": 23034,
    "NVIDIA-L40S": 46068,
    "NVIDIA-H100-80GB-HBM3": 81559,
    "NVIDIA-H100-NVL": 95830,
    "NVIDIA-H200": 143771,
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": 97887,
}

#: The order of the columns of ``types.csv``, which the reader relies on.
COLUMNS = (
    "name cloud arch gpu_product gpu_karpenter_name gpu_manufacturer source allocatable_source vcpu memory_mib gpus gpu_memory_mib"
    " gpu_visible_memory_mib efa cpu_milli allocatable_memory_mib ephemeral_mib pods"
).split()

#: EFA interfaces of GPU types. Source: Karpenter's table of instance types (``vpc.amazonaws.com/efa``), which is EC2's own answer. Types
#: newer than that table (g7, g7e, p6-b300) count as none.
EFA: Mapping[str, int] = {
    **dict.fromkeys((f"g4dn.{size}" for size in ("8xlarge", "12xlarge", "16xlarge", "metal")), 1),
    **dict.fromkeys((f"{family}.{size}xlarge" for family in ("g5", "g6") for size in (8, 12, 16, 24, 48)), 1),
    **dict.fromkeys((f"g6e.{size}xlarge" for size in (8, 12, 16)), 1),
    "g6e.24xlarge": 2,
    "g6e.48xlarge": 4,
    "gr6.8xlarge": 1,
    "p3dn.24xlarge": 1,
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.4xlarge": 1,
    "p5.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
}


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(SHARED / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


def short(basis: str) -> str:
    for beginning, name in BASES.items():
        if basis.startswith(beginning):
            return name
    raise SystemExit(f"{SHARED}/instance_catalog.csv.gz: unknown basis {basis!r}; add it to BASES and SOURCES")


def is_wanted(row: Mapping[str, str]) -> bool:
    if row["cloud"] == "alibaba" or any(part in row["instance_type"] for part in LEFT_OUT):
        return False
    return bool(row["gpu_model"]) or row["gpus"] == "0"


def tiered(amount: float, tiers: Iterable[tuple[float, float]], rest: float) -> float:
    """The sum of shares of ``amount``: (size of the tier, share) in turn, then ``rest`` of the remainder."""
    reserved = 0.0
    for size, share in tiers:
        part = min(amount, size)
        reserved += part * share
        amount -= part
    return reserved + amount * rest


def aks(vcpu: int, memory: int) -> tuple[int, int, int, int]:
    """(cpu milli, memory MiB, ephemeral storage MiB, pods) of an AKS node, with AKS's largest number of pods."""
    room = allocatable(vcpu, memory)
    return room["cpu"], room["memory"] // MIB, room["ephemeral-storage"] // MIB, room["pods"]


def gke(vcpu: int, memory: int) -> tuple[int, int, int, int]:
    """(cpu milli, memory MiB, ephemeral storage MiB, pods) of a GKE node.

    Reserved: 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest; 25 % of the first 4 GiB, 20 % of the next 4,
    10 % of 8, 6 % of 112, 2 % of the rest; 100 MiB before eviction; of the disk the least of a half, 6 GiB + 35 % and 100 GiB, and 10 %.
    """
    cpu = tiered(vcpu * 1000, ((1000, 0.06), (1000, 0.01), (2000, 0.005)), 0.0025)
    usable = memory * (1 - OVERHEAD)
    reserved = tiered(memory, ((4096, 0.25), (4096, 0.2), (8192, 0.1), (114_688, 0.06)), 0.02)
    disk = 100 * 1024
    return int(vcpu * 1000 - cpu), int(usable - reserved - 100), int(disk - min(disk / 2, 6144 + 0.35 * disk, 102_400) - 0.1 * disk), 110


def type_row(row: Mapping[str, str]) -> dict[str, object]:
    """One line of ``types.csv``."""
    name, cloud = row["instance_type"], row["cloud"]
    vcpu, memory = int(row["vcpu"]), int(row["mem_mib"])
    model = row["gpu_model"].split("(")[0]
    amd = model.startswith(("RADEON", "MI"))
    out: dict[str, object] = {
        "name": name,
        "cloud": cloud,
        # The source leaves GCP's column empty; every family it lists there (n1 n2 n2d n4 e2 c3 c3d c4 t2d a2 a3 g2 g4) is x86.
        "arch": row["arch"] or "amd64",
        "vcpu": vcpu,
        "memory_mib": memory,
        "gpus": int(row["gpus"]),
        "gpu_product": PRODUCTS[(cloud, model)] if model else "",
        "gpu_karpenter_name": karpenter_name(cloud, model),
        "gpu_manufacturer": ("amd" if amd else "nvidia") if model else "",
        "gpu_memory_mib": int(row["gpu_mem_mib_each"] or 0),
        "source": "azure-types-2026-03" if cloud == "azure" else "catalogue-2026-08",
    }
    if "(" in row["gpu_model"]:
        out["gpu_product"] = ""  # a slice of a GPU: no label of one was seen
    if name in AWS_80GB:
        out["gpu_product"] = AWS_80GB[name]
    if name in CORRECTIONS:
        out |= {**CORRECTIONS[name], "source": "azure-sizes-doc"}
    out["gpu_visible_memory_mib"] = VISIBLE_MEMORY.get(str(out["gpu_product"]), out["gpu_memory_mib"])
    out["efa"] = EFA.get(name, 0)
    if cloud == "aws":
        numbers = int(row["alloc_cpu_milli"]), int(row["alloc_mem_mib"]), 17 * 1024, int(row["max_pods"])
    else:
        numbers = (aks if cloud == "azure" else gke)(vcpu, memory)
    out |= zip(("cpu_milli", "allocatable_memory_mib", "ephemeral_mib", "pods"), numbers, strict=True)
    out["allocatable_source"] = {"aws": "eks", "azure": "aks-rule", "gcp": "gke-rule"}[cloud]
    return out


def karpenter_name(cloud: str, model: str) -> str:
    """The value of ``karpenter.k8s.aws/instance-gpu-name`` (lower case) or ``karpenter.azure.com/sku-gpu-name`` (the model's family)."""
    if cloud == "azure":
        return model.split("-")[0]
    return model.lower()


def prices(catalogue: list[dict[str, str]], types: set[str]) -> list[dict[str, object]]:
    """Prices per type and region; GCP's newest history row fills the regions that the catalogue does not have."""
    prices_by_key: dict[tuple[str, str], dict[str, object]] = {}
    newest: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows("gcp_gpu_price_history.csv.gz"):
        key = (row["instance_type"], row["region"])
        if row["instance_type"] in types and row["on_demand_usd_h"] and (key not in newest or newest[key]["date"] <= row["date"]):
            newest[key] = row
    for key, row in newest.items():
        prices_by_key[key] = price(*key, row["on_demand_usd_h"], row["spot_usd_h"], "gcp-2026-07", "gcp-2026-07")
    for row in catalogue:
        key = (row["instance_type"], row["region"])
        spot_source = short(row["spot_basis"]) if row["spot_usd_h"] else ""
        prices_by_key[key] = price(*key, row["on_demand_usd_h"], row["spot_usd_h"], short(row["on_demand_basis"]), spot_source)
    return [prices_by_key[key] for key in sorted(prices_by_key)]


def price(name: str, region: str, on_demand: str, spot: str, source: str, spot_source: str) -> dict[str, object]:
    return {
        "name": name,
        "region": region,
        "on_demand": rounded(on_demand),
        "spot": rounded(spot),
        "source": source,
        "spot_source": spot_source if spot else "",
    }


def rounded(text: str) -> str:
    """Round to micro-dollars; an empty price stays empty."""
    return f"{float(text):.6f}".rstrip("0").rstrip(".") if text else ""


def zones() -> list[dict[str, object]]:
    zone_ids: dict[tuple[str, str], list[str]] = {}
    for row in rows("aws_gpu_offerings_by_az.csv.gz"):
        zone_ids.setdefault((row["instance_type"], row["region"]), []).append(row["az_id"])
    return [{"name": name, "region": region, "zone_ids": " ".join(sorted(ids))} for (name, region), ids in sorted(zone_ids.items())]


def write(name: str, lines: list[dict[str, object]]) -> None:
    with (OUT / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{OUT / name}: {len(lines)} rows", file=sys.stderr)


def main() -> None:
    catalogue = [row for row in rows("instance_catalog.csv.gz") if is_wanted(row)]
    types = {row["instance_type"]: type_row(row) for row in catalogue}
    OUT.mkdir(parents=True, exist_ok=True)
    write("sources.csv", [{"id": name, "text": text} for name, text in SOURCES.items()])
    write("types.csv", [{column: types[name][column] for column in COLUMNS} for name in sorted(types)])
    write("prices.csv", prices(catalogue, set(types)))
    write("zones.csv", [line for line in zones() if line["name"] in types])


if __name__ == "__main__":
    main()
