"""Weights over a gloo process group: what NCCL broadcast is to SkyRL's GPU engines.

Rank 0 is the trainer's first rank, the ranks above it are engines. The group is built without
``torch.distributed``'s global state, so a trainer rank can hold it beside its FSDP group and an
engine needs no group of its own. Both ends agree on names, types and shapes beforehand
(``weight_metadata`` of SkyRL's weight extractor, sent over HTTP).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

JOIN_TIMEOUT = timedelta(seconds=120)
TRANSFER_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class WeightMetadata:
    """What follows on the wire: parallel lists, as SkyRL's extractor names them."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            raise ValueError(
                f"weight metadata has {len(self.names)} names, {len(self.dtype_names)} types and "
                f"{len(self.shapes)} shapes; they must be parallel"
            )


class TransferGroup:
    """One end of the gloo group. Blocking; every member must join and broadcast alike."""

    def __init__(self, *, address: str, port: int, rank: int, world_size: int) -> None:
        store = TCPStore(address, port, world_size, is_master=rank == 0, timeout=JOIN_TIMEOUT)
        self._group: Any = ProcessGroupGloo(store, rank, world_size, timeout=TRANSFER_TIMEOUT)
        self._store = store  # the group reads from it as long as it lives

    def send(self, tensors: Iterable[torch.Tensor]) -> None:
        """Rank 0: broadcast each tensor in turn."""
        for tensor in tensors:
            self._broadcast(tensor.contiguous())

    def receive(self, metadata: WeightMetadata) -> Iterator[tuple[str, torch.Tensor]]:
        """Engines: the tensors in the order of ``metadata``."""
        for name, dtype_name, shape in zip(
            metadata.names, metadata.dtype_names, metadata.shapes, strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
            self._broadcast(tensor)
            yield name, tensor

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._group.broadcast(tensor, root=0).wait()
