"""The transfer to the CPU engine where SkyRL syncs by a transfer strategy (0.3.0)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from skyrl.backends.skyrl_train import weight_sync
from skyrl.backends.skyrl_train.weight_sync import (
    BroadcastInitInfo,
    BroadcastTransferStrategy,
    BroadcastWeightTransferSender,
    WeightChunk,
)

from .transfer import TransferGroup

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )


class SendsOverGloo:
    """Makes the policy worker that it is mixed into choose :class:`GlooTransferStrategy`."""

    def __init__(self, **kwargs: Any) -> None:
        weight_sync.get_transfer_strategy_cls = lambda *args, **kwargs: GlooTransferStrategy
        super().__init__(**kwargs)


class GlooTransferStrategy(BroadcastTransferStrategy):
    """SkyRL's broadcast strategy with gloo in place of vllm's NCCL engine."""

    @staticmethod
    def create_sender(
        init_info: BroadcastInitInfo, inference_client: RemoteInferenceClient
    ) -> GlooWeightTransferSender:
        """Join the group as rank 0; SkyRL has the engines join at the same time."""
        group = None
        if dist.get_rank() == 0:
            group = TransferGroup(
                address=init_info.master_addr,
                port=init_info.master_port,
                rank=0,
                world_size=init_info.world_size,
            )
        return GlooWeightTransferSender(init_info, group, inference_client)


class GlooWeightTransferSender(BroadcastWeightTransferSender):
    """Announces the update over HTTP and broadcasts the tensors meanwhile, as SkyRL's does."""

    _model_update_group: Any

    async def send_chunks(
        self,
        chunks: Iterable[WeightChunk],
        weight_metadata: dict[str, list[Any]] | None = None,
    ) -> None:
        """Send what SkyRL's extractor yields. Called on every rank: gathering is collective."""
        if weight_metadata is None:
            raise ValueError("weight_metadata is required: the engine must know what follows")

        def tensors() -> Iterator[torch.Tensor]:
            for chunk in chunks:
                yield from chunk.tensors

        if dist.get_rank() == 0:
            await self._inference_client.start_weight_update(is_checkpoint_format=True)
            received = asyncio.create_task(
                self._inference_client.update_weights_nccl(weight_metadata)
            )
            await asyncio.to_thread(self._model_update_group.send, tensors())
            await received
            await self._inference_client.finish_weight_update()
        else:
            for _ in tensors():
                pass
        dist.barrier()

    def teardown(self) -> None:
        self._model_update_group = None  # gloo closes its sockets with the last reference
