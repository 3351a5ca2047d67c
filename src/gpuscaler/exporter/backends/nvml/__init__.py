"""Backend for NVIDIA GPUs, through libnvidia-ml.so.1, which comes with their driver."""
