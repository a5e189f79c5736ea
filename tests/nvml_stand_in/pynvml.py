"""Two GPUs that answer like NVIDIA's driver library: on PYTHONPATH in place of nvidia-ml-py (make test-ladder)."""
# ruff: noqa: N802, N816, ARG001  # names and arguments are those of the library

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0


class NVMLError(Exception):
    """Error of the library for a question that the driver does not answer."""


def nvmlInit():
    pass


def nvmlSystemGetDriverVersion():
    return "580.95.05"


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return f"GPU-AA47B36E-4d4b-0a1a-9a42-00000000000{handle}"


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def _unsupported(*_):
    raise NVMLError("not supported")


def nvmlDeviceGetPowerUsage(handle):
    return 400_000 + 1000 * handle  # mW


nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetClockInfo = nvmlDeviceGetTemperature = _unsupported
nvmlDeviceGetMaxClockInfo = nvmlDeviceGetEnforcedPowerLimit = _unsupported
nvmlDeviceGetPowerManagementDefaultLimit = nvmlDeviceGetComputeRunningProcesses = _unsupported
nvmlDeviceGetMemoryInfo = nvmlDeviceGetPciInfo = _unsupported
nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetMigMode = _unsupported
