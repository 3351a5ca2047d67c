"""Combination of several samples of one object."""

import pytest

from gpuscaler.metrics.rules.combining import is_summed


@pytest.mark.parametrize(
    ("name", "adds"),
    [
        ("nvidia_gpu_memory_used_bytes", True),
        ("memory_used_bytes_current", True),
        ("power_usage_milliwatts_over_time", True),
        ("gpuscaler_gpu_power_watts_mean", False),
        ("DCGM_FI_DEV_FB_USED", True),
        ("DCGM_FI_DEV_POWER_USAGE", True),
        ("http_requests_total", True),
        ("vllm:num_requests_waiting", True),
        ("nvidia_gpu_duty_cycle", False),
        ("duty_cycle_current", False),
        ("temperature_celsius_current", False),
        ("DCGM_FI_DEV_GPU_UTIL", False),
        ("gpu_memory_busy_ratio", False),
        ("kv_cache_usage_perc", False),
    ],
)
def test_bytes_watts_and_counts_are_summed_and_rates_are_averaged(name: str, adds: bool) -> None:
    assert is_summed(name) is adds
