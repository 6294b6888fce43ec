"""A platform for verl without accelerators, in verl's own registry of platforms: `VERL_USE_EXTERNAL_MODULES=verl_cpu VERL_PLATFORM=cpu`."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed
import torch.distributed.fsdp
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


def join() -> str:
    """Makes the process group before verl does. verl would ask for `cpu:gloo,cpu:gloo`, and torch accepts no device twice."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return "gloo"


nothing = lambda *_, **__: None
zero = lambda *_, **__: 0
device = SimpleNamespace(
    is_available=lambda: False,
    empty_cache=nothing,
    synchronize=nothing,
    ipc_collect=nothing,
    max_memory_allocated=zero,
    max_memory_reserved=zero,
    memory_allocated=zero,
    memory_reserved=zero,
    mem_get_info=lambda *_: (0, 1),
    current_device=lambda: "cpu",
    device_count=lambda: 1,
    set_device=nothing,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    get_device_name=lambda *_: "cpu",
    manual_seed=nothing,
    reset_peak_memory_stats=nothing,
)


@platform_manager.PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "none"
    device_module = device

    is_available = lambda self: True
    is_platform_available = lambda self, use_smi_check=False: True
    current_device = lambda self: "cpu"
    device_count = lambda self: 1
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing
    get_device_capability = lambda self, index=0: (None, None)
    communication_backend_name = lambda self: join()
    visible_devices_envvar = lambda self: "CUDA_VISIBLE_DEVICES"
    nvtx_range = lambda self, message: nullcontext()
    profiler_start = profiler_stop = cudart = nothing
    ray_resource_name = lambda self: "CPU"
    ray_resource_options = lambda self, count: {"num_cpus": count}
    ray_noset_envvars = lambda self: []
    is_ipc_supported = lambda self: False


platform_manager.set_platform(PlatformCPU())
# FSDP1 broadcasts the first rank's weights at the start. gloo can do that on CPUs, but torch demands a GPU first.
torch.distributed.fsdp._init_utils._check_module_states_for_sync_module_states = nothing
