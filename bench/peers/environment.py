"""environment.py -- the GPU, the driver and the libraries that a run's figures belong to."""
import subprocess

import torch


def environment(all_systems):
    properties = torch.cuda.get_device_properties(0)
    facts = {"gpu": properties.name, "sms": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size,
             "memory_bytes": properties.total_memory, "driver": driver_version(), "cuda": torch.version.cuda}
    for system in all_systems:
        facts.update(system.versions())
    return facts


def driver_version():
    """The driver's version, or None where nvidia-smi is not there."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
