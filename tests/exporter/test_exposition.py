"""The page of metrics: its labels, its pods and its format."""

from collections.abc import Mapping, Sequence

import pytest
from tests.exporter.scraping import Scrape, scrape

from gpuscaler.exporter import exposition
from gpuscaler.exporter.exposition import Page
from gpuscaler.exporter.fields import FIELDS
from gpuscaler.exporter.lines import Devices, Event, Reading, Unavailable
from gpuscaler.exporter.measured import Measurements
from gpuscaler.exporter.parts import Attribution, Device, Instance, Owner, Process

GPU = Device("GPU-a", 0, 3, "NVIDIA L4", "00000000:01:00.0")
TRAINING = Owner("ml", "training-0", "main", "uid-0")
SERVING = Owner("web", "serving-0", "main", "uid-1")
VALUES = {"duty_cycle": 60.0, "memory_used_bytes": 1000.0, "temperature_celsius": 41.0, "sm_clock_hertz": 1.5e9}


def measured(*devices: Device, readings: Mapping[str, Mapping[str, float]], processes: Sequence[Process] | None = ()) -> Measurements:
    measured = Measurements(5.0)
    measured.apply(Devices(devices, "580", "13.0"))
    for key, values in readings.items():
        measured.apply(Reading(key, 100.0, dict(values), None if processes is None else tuple(processes), {}))
    return measured


def page(measured: Measurements, attribution: Attribution = Attribution(), *, now: float = 101.0, node: str = "node-1") -> Scrape:  # noqa: B008  # a tuple
    made = Page()
    exposition.add_devices(made, measured, attribution, node=node, now=now)
    exposition.add_events(made, measured, node=node, epoch=1_000_000.0)
    return scrape(made.text())


def test_the_six_main_metrics_have_the_documented_names_and_labels() -> None:
    values = {key: 7.0 for key, field in FIELDS.items() if field.metric.startswith("nvidia_gpu_")}

    scrape = page(measured(GPU, readings={"GPU-a": values}), Attribution({"GPU-a": (TRAINING,)}))

    labels = {
        "node_name": "node-1",
        "pod_name": "training-0",
        "namespace_name": "ml",
        "container_name": "main",
        "uuid": "GPU-a",
        "minor_number": "3",
        "name": "NVIDIA L4",
    }
    for name in (
        "duty_cycle",
        "memory_used_bytes",
        "memory_total_bytes",
        "power_usage_milliwatts",
        "temperature_celsius",
        "fanspeed_percent",
    ):
        assert scrape.samples[f"nvidia_gpu_{name}"] == [(labels, 7.0)]


def test_a_gpu_that_is_not_allocated_has_no_pod_labels() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": VALUES}))

    labels = {name for samples in scrape.samples.values() for sample_labels, _ in samples for name in sample_labels}
    assert {"pod_name", "namespace_name", "container_name"} & labels == set()
    assert scrape.value("gpuscaler_gpu_containers", uuid="GPU-a") == 0


def test_values_missing_from_a_reading_are_missing_from_the_page() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": {"temperature_celsius": 40.0}}))

    assert "nvidia_gpu_duty_cycle" not in scrape.samples
    assert "gpuscaler_gpu_duty_cycle_ratio_max" not in scrape.samples


def test_a_reading_that_is_too_old_is_not_served() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})

    assert page(measurements, now=105.0).values("nvidia_gpu_duty_cycle") == [60]
    assert page(measurements, now=105.1).samples == {}


def test_pods_on_a_shared_gpu_have_their_own_values_if_processes_are_known() -> None:
    processes = [Process("GPU-a", 1, 300, 20.0), Process("GPU-a", 2, 200, 25.0), Process("GPU-a", 3, 100, 5.0)]
    by_process = {1: SERVING, 2: SERVING}
    attribution = Attribution({"GPU-a": (TRAINING, SERVING)}, by_process)

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=processes), attribution)

    assert scrape.value("nvidia_gpu_duty_cycle", pod_name="serving-0") == 45
    assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="serving-0") == 500
    # The pod has no process: it uses nothing, whatever the others do.
    assert scrape.value("nvidia_gpu_duty_cycle", pod_name="training-0") == 0
    assert scrape.value("nvidia_gpu_temperature_celsius", pod_name="training-0") == 41
    assert scrape.value("gpuscaler_gpu_process_sm_ratio", pid="2", pod_name="serving-0") == 0.25
    assert scrape.pods("gpuscaler_gpu_process_sm_ratio", pid="3") == [None]


def test_a_process_of_a_previous_pod_with_the_same_name_is_not_counted() -> None:
    processes = [Process("GPU-a", 1, 300, 20.0), Process("GPU-a", 2, 200, 25.0)]
    by_process = {1: SERVING, 2: SERVING._replace(uid="uid-9")}

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=processes), Attribution({"GPU-a": (TRAINING, SERVING)}, by_process))

    assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="serving-0") == 300


def test_a_process_with_an_unknown_container_is_counted_for_its_pod() -> None:
    processes = [Process("GPU-a", 1, 300, 20.0)]
    by_process = {1: SERVING._replace(container="")}

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=processes), Attribution({"GPU-a": (TRAINING, SERVING)}, by_process))

    assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="serving-0") == 300
    assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="training-0") == 0


def test_a_pod_whose_process_has_no_values_gets_the_gpus_value() -> None:
    processes = [Process("GPU-a", 1, 300, None), Process("GPU-a", 2, 200, 25.0)]
    attribution = Attribution({"GPU-a": (TRAINING, SERVING)}, {1: SERVING, 2: SERVING})

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=processes), attribution)

    assert scrape.value("nvidia_gpu_duty_cycle", pod_name="serving-0") == 60
    assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="serving-0") == 500
    assert scrape.pods("gpuscaler_gpu_process_sm_ratio") == ["serving-0"]


def test_a_process_on_a_gpu_of_one_pod_is_attributed_to_that_pod_unless_known_otherwise() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES}, processes=[Process("GPU-a", 1, 300, 20.0)])

    unknown = page(measurements, Attribution({"GPU-a": (TRAINING,)}, None))
    outside = page(measurements, Attribution({"GPU-a": (TRAINING,)}, {}))

    assert unknown.pods("gpuscaler_gpu_process_memory_used_bytes", pid="1") == ["training-0"]
    assert outside.pods("gpuscaler_gpu_process_memory_used_bytes", pid="1") == [None]


def test_pods_on_a_shared_gpu_all_have_the_gpus_values_if_processes_are_unknown() -> None:
    attribution = Attribution({"GPU-a": (TRAINING, SERVING)})

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=[Process("GPU-a", 1, 300, 20.0)]), attribution)

    assert scrape.values("nvidia_gpu_duty_cycle") == [60, 60]
    assert scrape.pods("nvidia_gpu_memory_used_bytes") == ["training-0", "serving-0"]
    assert scrape.pods("gpuscaler_gpu_process_sm_ratio", pid="1") == [None]


def test_each_pod_has_the_gpus_values_if_the_driver_lists_no_processes() -> None:
    attribution = Attribution({"GPU-a": (TRAINING, SERVING)}, {})

    scrape = page(measured(GPU, readings={"GPU-a": VALUES}, processes=None), attribution)

    assert scrape.values("nvidia_gpu_memory_used_bytes") == [1000, 1000]


def test_values_of_a_shared_gpu_that_processes_lack_are_served_once_without_pod_labels() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": VALUES}), Attribution({"GPU-a": (TRAINING, SERVING)}))

    assert scrape.pods("gpuscaler_gpu_sm_clock_hertz") == [None]
    assert scrape.pods("gpuscaler_gpu_duty_cycle_ratio_max", window="15s") == [None]
    assert scrape.pods("gpuscaler_gpu_allocation_info") == ["training-0", "serving-0"]
    assert scrape.value("gpuscaler_gpu_containers") == 2


def test_two_containers_of_one_pod_have_separate_values() -> None:
    sidecar = TRAINING._replace(container="sidecar")
    processes = [Process("GPU-a", 1, 300, 20.0), Process("GPU-a", 2, 200, 25.0)]

    scrape = page(
        measured(GPU, readings={"GPU-a": VALUES}, processes=processes),
        Attribution({"GPU-a": (TRAINING, sidecar)}, {1: TRAINING, 2: sidecar}),
    )

    assert scrape.value("nvidia_gpu_duty_cycle", container_name="sidecar") == 25


def test_mig_devices_have_pod_labels_and_the_gpu_has_none() -> None:
    whole = GPU._replace(instances=(Instance("MIG-a", 3, 0, "3g.40gb"), Instance("MIG-b", 5, 0, "1g.10gb")))
    readings = {"GPU-a": {"temperature_celsius": 41.0}, "MIG-a": {"duty_cycle": 80.0}, "MIG-b": {"duty_cycle": 5.0}}

    scrape = page(measured(whole, readings=readings), Attribution({"MIG-a": (TRAINING,)}))

    assert scrape.value("nvidia_gpu_duty_cycle", uuid="MIG-a", gpu_uuid="GPU-a", gpu_instance="3", profile="3g.40gb") == 80
    assert scrape.pods("nvidia_gpu_duty_cycle") == ["training-0", None]
    assert scrape.pods("nvidia_gpu_temperature_celsius") == [None]


def test_windowed_metrics_use_all_samples_and_scrapes_do_not_reset_them() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})
    for later in range(1, 30):
        value = 100.0 if later == 20 else 0.0
        measurements.apply(Reading("GPU-a", 100.0 + later, {"duty_cycle": value}, (), {"duty_cycle": 30.0} if later == 25 else {}))

    first, second = page(measurements, now=129.5), page(measurements, now=129.5)

    assert first == second
    assert first.value("gpuscaler_gpu_duty_cycle_ratio_max", window="15s") == 1
    assert first.value("gpuscaler_gpu_duty_cycle_ratio_max", window="60s") == 1
    assert first.value("gpuscaler_gpu_duty_cycle_ratio_mean", window="15s") == pytest.approx(1 / 15)
    assert first.value("nvidia_gpu_duty_cycle") == 0


def test_windowed_metrics_of_a_reassigned_gpu_have_no_samples_of_the_previous_pod() -> None:
    measurements = measured(GPU, readings={"GPU-a": {}})
    measurements.assign({"GPU-a": (TRAINING,)}, now=100.0, interval=1.0)
    for at in (100.5, 101.5, 102.5):
        measurements.apply(Reading("GPU-a", at, {"duty_cycle": 100.0}, (), {}))
    before = page(measurements, Attribution({"GPU-a": (TRAINING,)}), now=102.6)

    measurements.assign({"GPU-a": (SERVING,)}, now=103.0, interval=1.0)
    after = Attribution({"GPU-a": (SERVING,)})
    at_once = page(measurements, after, now=103.1)
    # This driver sample covers the last second, and its peak the time since the previous reading.
    measurements.apply(Reading("GPU-a", 103.5, {"duty_cycle": 70.0}, (), {"duty_cycle": 100.0}))
    too_early = page(measurements, after, now=103.6)
    measurements.apply(Reading("GPU-a", 104.5, {"duty_cycle": 20.0}, (), {"duty_cycle": 30.0}))
    own = page(measurements, after, now=104.6)

    assert before.value("gpuscaler_gpu_duty_cycle_ratio_max", pod_name="training-0", window="60s") == 1
    assert at_once.values("gpuscaler_gpu_duty_cycle_ratio_max") == too_early.values("gpuscaler_gpu_duty_cycle_ratio_max") == []
    assert own.value("gpuscaler_gpu_duty_cycle_ratio_max", pod_name="serving-0", window="60s") == 0.3
    assert own.value("gpuscaler_gpu_duty_cycle_ratio_mean", pod_name="serving-0", window="60s") == 0.2


def test_windowed_metrics_continue_while_the_same_pod_has_the_gpu() -> None:
    measurements = measured(GPU, readings={"GPU-a": {}})
    measurements.assign({"GPU-a": (TRAINING,)}, now=98.0, interval=1.0)
    measurements.apply(Reading("GPU-a", 100.0, VALUES, (), {}))
    for owner in (TRAINING._replace(uid=""), TRAINING):
        measurements.assign({"GPU-a": (owner,)}, now=100.5, interval=1.0)

    assert page(measurements).value("gpuscaler_gpu_duty_cycle_ratio_max", window="60s") == 0.6


def test_windowed_metrics_of_other_gpus_continue_when_one_gpu_is_reassigned() -> None:
    other = Device("GPU-b", 1, 4, "NVIDIA L4")
    measurements = measured(GPU, other, readings={"GPU-a": VALUES, "GPU-b": VALUES})
    measurements.assign({"GPU-b": (SERVING,)}, now=100.6, interval=1.0)

    assert measurements.devices == (GPU, other)
    assert page(measurements).values("gpuscaler_gpu_duty_cycle_ratio_max", uuid="GPU-a") == [0.6, 0.6]
    assert page(measurements).values("gpuscaler_gpu_duty_cycle_ratio_max", uuid="GPU-b") == []


def test_counters_are_served_with_the_labels_of_their_field() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": {"ecc_errors:corrected:volatile": 4.0, "energy_joules": 1.5}}))

    assert scrape.value("gpuscaler_gpu_ecc_errors_total", kind="corrected", scope="volatile") == 4
    assert scrape.value("gpuscaler_gpu_energy_joules_total") == 1.5
    assert scrape.kinds["gpuscaler_gpu_energy_joules"] == "counter"


def test_an_unknown_field_is_left_out_of_the_page() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": {"warp_factor": 9.0, "duty_cycle": 1.0}}))

    assert not [name for name in scrape.samples if "warp" in name]


def test_xid_errors_are_counted_with_their_severity() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})
    for at, code in enumerate((79, 79, 31, 1)):
        measurements.apply(Event("GPU-a", code, 100.0 + at))

    scrape = page(measurements)

    assert scrape.value("gpuscaler_gpu_xid_errors_total", xid="79", severity="critical", uuid="GPU-a") == 2
    assert scrape.value("gpuscaler_gpu_xid_errors_total", xid="31", severity="application") == 1
    assert scrape.value("gpuscaler_gpu_last_xid_error_timestamp_seconds", xid="79", severity="critical") == 1_000_101
    assert scrape.value("gpuscaler_gpu_xid_errors_total", xid="1", severity="other", action="unknown") == 1


def test_xid_counts_of_a_gpu_remain_after_the_gpu_is_lost() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})
    measurements.apply(Event("GPU-a", 79, 100.0))
    measurements.apply(Devices((), "580", "13.0"))

    assert page(measurements).samples["gpuscaler_gpu_xid_errors_total"] == [
        ({"node_name": "node-1", "uuid": "GPU-a", "xid": "79", "severity": "critical", "action": "power_cycle"}, 1)
    ]


def test_a_gpu_that_returns_has_no_old_values() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})
    for there in ((), (GPU,)):
        measurements.apply(Devices(there, "580", "13.0"))

    assert page(measurements).samples == {}


def test_values_expire_after_the_measuring_process_ends_and_disappear_with_the_driver() -> None:
    measurements = measured(GPU, readings={"GPU-a": VALUES})

    measurements.apply(Unavailable("failed", "the measuring process ended with -9"))
    ended = page(measurements)
    measurements.apply(Unavailable("no-driver", "saw no driver"))
    went = page(measurements)

    assert ended.values("nvidia_gpu_duty_cycle") == [60]
    assert went.samples == {}


def test_the_label_of_an_unknown_minor_number_is_left_out() -> None:
    scrape = page(measured(GPU._replace(minor=-1), readings={"GPU-a": VALUES}))

    assert "minor_number" not in scrape.samples["nvidia_gpu_duty_cycle"][0][0]


def test_label_values_with_special_characters_are_escaped() -> None:
    odd = 'a "quoted" \\ name\nof two lines'

    scrape = page(measured(GPU._replace(name=odd), readings={"GPU-a": VALUES}))

    assert scrape.samples["nvidia_gpu_duty_cycle"][0][0]["name"] == odd


def test_large_integers_keep_all_their_digits() -> None:
    scrape = page(measured(GPU, readings={"GPU-a": {"memory_total_bytes": 85899345921.0}}))

    assert scrape.value("nvidia_gpu_memory_total_bytes") == 85899345921
