"""SkyRL's FSDP workers on a CPU: the redirections, and the transfer to the CPU engine.

Everything that differs from a GPU run is in :func:`redirect_cuda_to_cpu`, :class:`OnCpu` and
``SendsOverGloo``, of which there is one for each way in which releases of SkyRL sync weights. They
act only inside the actor processes of the three worker classes below; the models, losses, optimizer
steps and checkpoints are SkyRL's.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any

import ray
import torch
import torch.distributed as dist

from . import bert_padding
from .padding import drop_common_padding
from .tied_weights import keep_tied_weights

bert_padding.lend()

from skyrl.backends.skyrl_train import weight_sync  # noqa: E402
from skyrl.backends.skyrl_train.distributed import fsdp_utils  # noqa: E402
from skyrl.backends.skyrl_train.workers import model_wrapper  # noqa: E402
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import (  # noqa: E402
    FSDPCriticWorkerBase,
    FSDPPolicyWorkerBase,
    FSDPRefWorkerBase,
)

if TYPE_CHECKING or hasattr(weight_sync, "BroadcastTransferStrategy"):
    from .strategy_sender import SendsOverGloo
else:
    from .trainer_engine import SendsOverGloo

CPU = torch.device("cpu")


def redirect_cuda_to_cpu() -> None:
    """Make the calls that SkyRL's FSDP path addresses to CUDA reach the CPU, in this process.

    Each redirection is a function of its own: torch 2.13 refuses one object in two places.
    """
    torch.cuda.is_available = lambda: False
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment, return-value]
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[misc]
    torch.cuda.empty_cache = lambda: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign, assignment]
    dist.init_process_group = _on_gloo(dist.init_process_group)
    mesh = _on_cpu_mesh(dist.device_mesh.init_device_mesh)
    dist.device_mesh.init_device_mesh = mesh
    fsdp_utils.init_device_mesh = mesh
    fsdp_utils._sync_non_persistent_buffers = _sync_non_persistent_buffers
    # autocast("cuda") switches itself off without CUDA, which is what fp32 wants; it says so
    # once for each micro batch.
    warnings.filterwarnings("ignore", message=".*device_type of 'cuda'.*")


def _on_gloo(init_process_group: Any) -> Any:
    @wraps(init_process_group)
    def on_gloo(backend: str | None = None, **kwargs: Any) -> None:
        init_process_group(backend="gloo", **kwargs)

    return on_gloo


def _on_cpu_mesh(init_device_mesh: Any) -> Any:
    @wraps(init_device_mesh)
    def on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return init_device_mesh("cpu", *args, **kwargs)

    return on_cpu


def _sync_non_persistent_buffers(model: torch.nn.Module, loaded: dict[str, Any]) -> None:
    """SkyRL's function of this name with its ``device="cuda"`` left out.

    Rotary tables are in no state dict; ranks above 0 have none until rank 0 sends its own.
    """
    for module in model.modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers[name]
            if buffer is None:
                continue
            empty = torch.empty(buffer.shape, dtype=buffer.dtype)
            value = buffer.detach().clone() if dist.get_rank() == 0 else empty
            dist.broadcast(value, src=0)
            module._buffers[name] = value


class OnCpu:
    """What the three workers have in common."""

    def __init__(self, **kwargs: Any) -> None:
        redirect_cuda_to_cpu()
        keep_tied_weights()
        drop_common_padding(model_wrapper)
        super().__init__(**kwargs)

    def offload_to_cpu(self, *args: Any, **kwargs: Any) -> None:
        """Everything is there already."""

    def backload_to_gpu(self, *args: Any, **kwargs: Any) -> None:
        """Everything stays where it is."""


class CpuPolicyWorker(OnCpu, SendsOverGloo, FSDPPolicyWorkerBase):
    """Trains, and sends its weights to the engine."""


class CpuCriticWorker(OnCpu, FSDPCriticWorkerBase):
    """Estimates values."""


class CpuRefWorker(OnCpu, FSDPRefWorkerBase):
    """Scores with the weights that training began from."""


PolicyWorker = ray.remote(num_gpus=1)(CpuPolicyWorker)
CriticWorker = ray.remote(num_gpus=1)(CpuCriticWorker)
RefWorker = ray.remote(num_gpus=1)(CpuRefWorker)
