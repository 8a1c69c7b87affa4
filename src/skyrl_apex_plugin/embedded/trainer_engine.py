"""The transfer to the CPU engine where SkyRL syncs by a trainer engine (0.4.0).

A trainer engine owns the whole round trip in one blocking ``send_weights()``. SkyRL's own engines
and weight sources are subclasses of vllm's, which cannot be imported without a GPU build of it;
the control plane that they drive can, and is used here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import ray
import torch
import torch.distributed as dist
from skyrl.backends.skyrl_train.weight_sync.control_plane import (
    SkyrlWeightSyncClient,
    nccl_init_payloads,
)
from skyrl.train.utils.utils import str_to_torch_dtype

from .transfer import TransferGroup, WeightMetadata

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )
    from skyrl.train.config import InferenceEngineConfig


class SendsOverGloo:
    """Gives the policy worker that it is mixed into a :class:`GlooTrainerEngine`.

    The two methods are those of SkyRL's worker in which vllm's engines are built and driven.
    """

    model: Any
    _reset_prefix_cache_task: Any

    async def init_weight_sync_state(
        self, inference_engine_client: RemoteInferenceClient, cfg: InferenceEngineConfig
    ) -> None:
        """Called on every rank; rank 0 joins a group with all engines."""
        # Later calls pass None for the client.
        self._weight_sync_inference_client = inference_engine_client
        engines, _ = await inference_engine_client.get_world_size()
        self._weight_sync_engine = await asyncio.to_thread(
            GlooTrainerEngine,
            self.model.model,
            dtype=str_to_torch_dtype(cfg.model_dtype),
            servers=list(inference_engine_client.server_urls),
            world_size=engines + 1,
        )
        dist.barrier()

    async def _sync_weights_to_inference_engines(
        self, inference_engine_client: RemoteInferenceClient, cfg: InferenceEngineConfig
    ) -> None:
        reset = self._reset_prefix_cache_task(inference_engine_client, cfg)
        await asyncio.to_thread(self._weight_sync_engine.send_weights)
        if reset is not None:
            await reset
        dist.barrier()


class GlooTrainerEngine:
    """One trainer rank's end. Rank 0 speaks to the engines; the others only help to gather.

    :param model: the sharded module whose ``state_dict()`` has the names that the engine knows.
    :param dtype: the type on the wire.
    :param servers: addresses of all engines.
    :param world_size: all engines and rank 0.
    """

    def __init__(
        self, model: torch.nn.Module, *, dtype: torch.dtype, servers: list[str], world_size: int
    ) -> None:
        self._model, self._dtype = model, dtype
        self._group: TransferGroup | None = None
        if dist.get_rank() == 0:
            self._client = SkyrlWeightSyncClient(servers, init_payload_fn=nccl_init_payloads)
            self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sync")
            self._group = self._join(world_size)

    def send_weights(self) -> None:
        """Called on every rank, because gathering a parameter is collective."""
        if self._group is None:
            for _ in self._tensors():
                pass
            return
        self._client.start_weight_update()
        received = self._aside.submit(self._client.update_weights, asdict(self._metadata()))
        self._group.send(self._tensors())
        received.result()
        self._client.finish_weight_update()

    def _join(self, world_size: int) -> TransferGroup:
        """Have the engines join while this rank waits for them."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        where = {"master_address": address, "master_port": port}
        joined = self._aside.submit(
            self._client.init_weight_transfer_engine,
            {**where, "rank_offset": 1, "world_size": world_size},
        )
        group = TransferGroup(address=address, port=port, rank=0, world_size=world_size)
        joined.result()
        return group

    def _metadata(self) -> WeightMetadata:
        """Global shapes, which a sharded parameter knows without gathering."""
        state = self._model.state_dict()
        return WeightMetadata(
            names=list(state),
            dtype_names=[str(self._dtype).removeprefix("torch.")] * len(state),
            shapes=[list(parameter.shape) for parameter in state.values()],
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self._model.state_dict().values():
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            yield whole.detach().to(self._dtype)
