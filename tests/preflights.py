"""A preflight of an H100, for tests of code that reads preflights."""

from tensorprimat.storage.preflight import Bandwidth, MatrixRate, Preflight


def made(**changed):
    """Return the preflight with some of its fields changed."""
    values = {
        "platform": "nvd", "device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "host": "node1",
        "timestamp": "2026-01-02T03:04:05+00:00",
        "matmul": (
            MatrixRate(precision="bf16", size=4096, best_flops_per_second=6e14, typical_flops_per_second=5.9e14,
                       peak_flops_per_second=989.4e12),
            MatrixRate(precision="bf16", size=8192, best_flops_per_second=7e14, typical_flops_per_second=6.8e14,
                       peak_flops_per_second=989.4e12),
        ),
        "bandwidth": (
            Bandwidth(kind="copy", size_bytes=2**31, best_bytes_per_second=2.8e12, typical_bytes_per_second=2.7e12,
                      peak_bytes_per_second=3.35e12),
            Bandwidth(kind="host_to_device", size_bytes=2**28, best_bytes_per_second=5e12,
                      typical_bytes_per_second=5e10),
        ),
    }  # fmt: skip
    return Preflight(**{**values, **changed})
