"""A minimal Qwen3 forward pass over a pool of key/value slots.

One call runs any mix of prefill chunks and single decoded tokens: linear layers see all tokens
of a step as one packed matrix, attention runs for each sequence over its own slot, without
padding. Checked against transformers' ``Qwen3ForCausalLM`` in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class UnsupportedModel(ValueError):
    """The checkpoint is not a dense Qwen3 with default rotary embeddings."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a Qwen3 model, under the names of its ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def read(cls, model_dir: Path) -> Shape:
        """Raises :class:`UnsupportedModel` naming what this forward pass does not have.

        Read without transformers' config class, whose import costs an engine seven seconds.
        """
        config = json.loads((model_dir / "config.json").read_text())
        # transformers 5 writes rope_parameters, earlier releases two fields.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        limits = {
            "model_type": (config.get("model_type"), "qwen3"),
            "hidden_act": (config.get("hidden_act", "silu"), "silu"),
            "attention_bias": (config.get("attention_bias", False), False),
            "use_sliding_window": (config.get("use_sliding_window", False), False),
            "rope_type": (rope.get("rope_type", "default"), "default"),
        }
        for name, (value, supported) in limits.items():
            if value != supported:
                raise UnsupportedModel(
                    f"{model_dir}/config.json has {name}={value!r}; the CPU engine runs "
                    f"{name}={supported!r} only"
                )
        eos = config.get("eos_token_id")
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
            max_position_embeddings=config["max_position_embeddings"],
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            eos_token_ids=tuple(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """``count`` new tokens of the sequence in ``slot``, at positions ``start``, ``start + 1``, …"""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one block, with projections of the same input fused."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor
    """``[heads + kv_heads, head_dim]``: one row for each query and key head."""
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Qwen3:
    """Weights in fp32 and ``slots`` sequences of up to ``max_len`` cached tokens each."""

    def __init__(
        self, shape: Shape, weights: Mapping[str, torch.Tensor], *, slots: int, max_len: int
    ) -> None:
        self.shape = shape
        self.slots = slots
        self.max_len = max_len
        self.load(weights)
        # Memory of a slot is only committed by the system when tokens are written to it.
        pool = (shape.layers, slots, shape.kv_heads, max_len, shape.head_dim)
        self._keys = torch.empty(pool)
        self._values = torch.empty(pool)
        self._cos, self._sin = _rotary_tables(shape, max_len)

    @classmethod
    def from_pretrained(cls, model_dir: Path, *, slots: int, max_len: int) -> Qwen3:
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(model_dir.glob("*.safetensors")):
            weights |= load_file(file)
        if not weights:
            raise UnsupportedModel(f"{model_dir} holds no *.safetensors file")
        return cls(Shape.read(model_dir), weights, slots=slots, max_len=max_len)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace all weights, given by their names in transformers' state dict.

        Raises ``ValueError`` when a name is missing or unknown, or a shape differs; the old
        weights then stay in place.
        """
        given = dict(weights)
        if self.shape.tie_word_embeddings:
            head = given.pop("lm_head.weight", None)
            embedding = given.get("model.embed_tokens.weight")
            if head is not None and embedding is not None and not torch.equal(head, embedding):
                raise ValueError(
                    "lm_head.weight differs from model.embed_tokens.weight, but the model ties "
                    "them (tie_word_embeddings): whoever sends these has trained two matrices"
                )
        expected = _parameter_shapes(self.shape)
        missing, unknown = expected.keys() - given.keys(), given.keys() - expected.keys()
        if missing or unknown:
            raise ValueError(
                f"weights do not fit: missing {sorted(missing)[:5]}, unknown {sorted(unknown)[:5]}"
            )
        for name, size in expected.items():
            if tuple(given[name].shape) != size:
                raise ValueError(f"{name} has shape {tuple(given[name].shape)}, expected {size}")
        fp32 = {name: tensor.to(torch.float32) for name, tensor in given.items()}
        self._embedding = fp32["model.embed_tokens.weight"]
        self._norm = fp32["model.norm.weight"]
        self._head = fp32.get("lm_head.weight", self._embedding)
        self._layers = [_fuse(self.shape, fp32, index) for index in range(self.shape.layers)]

    @torch.inference_mode()
    def forward(self, token_ids: Sequence[int], segments: Sequence[Segment]) -> torch.Tensor:
        """Run new tokens (concatenated in the order of ``segments``) and cache their keys.

        Returns the final hidden states, ``[tokens, hidden_size]``; see :meth:`logits`.
        """
        positions = torch.tensor([p for s in segments for p in range(s.start, s.start + s.count)])
        slots = torch.tensor([s.slot for s in segments for _ in range(s.count)])
        cos, sin = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)
        masks = [_causal_mask(s, self.shape) for s in segments]
        hidden = F.embedding(torch.tensor(token_ids), self._embedding)
        for index, layer in enumerate(self._layers):
            normed = self._rms(hidden, layer.input_norm)
            queries = self._project(index, layer, normed, cos, sin, slots, positions)
            hidden = hidden + F.linear(self._attend(index, queries, segments, masks), layer.output)
            normed = self._rms(hidden, layer.post_norm)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return self._rms(hidden, self._norm)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden_size]`` to ``[rows, vocab_size]``."""
        return F.linear(hidden, self._head)

    def copy_slot(self, source: int, target: int, count: int) -> None:
        """Copy the first ``count`` cached tokens of one slot to another."""
        self._keys[:, target, :, :count] = self._keys[:, source, :, :count]
        self._values[:, target, :, :count] = self._values[:, source, :, :count]

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.rms_norm_eps)

    def _project(
        self,
        index: int,
        layer: _Layer,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Cache keys and values of the new tokens; returns ``[tokens, heads, head_dim]``."""
        shape = self.shape
        qkv = F.linear(normed, layer.qkv).view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        qk = qkv[:, : shape.heads + shape.kv_heads]
        qk = F.rms_norm(qk, (shape.head_dim,), eps=shape.rms_norm_eps) * layer.qk_norm
        first, second = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat((-second, first), dim=-1) * sin
        self._keys[index, slots, :, positions] = qk[:, shape.heads :]
        self._values[index, slots, :, positions] = qkv[:, shape.heads + shape.kv_heads :]
        return qk[:, : shape.heads]

    def _attend(
        self,
        index: int,
        queries: torch.Tensor,
        segments: Sequence[Segment],
        masks: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Attention of each segment over its own slot, ``[tokens, heads * head_dim]``.

        The query heads that share a key head are folded into the query length, so grouped
        attention needs no repeated keys.
        """
        shape, outputs, offset = self.shape, [], 0
        keys, values = self._keys[index], self._values[index]
        for segment, mask in zip(segments, masks, strict=True):
            length = segment.start + segment.count
            rows = queries[offset : offset + segment.count]
            offset += segment.count
            folded = rows.transpose(0, 1).reshape(1, shape.kv_heads, -1, shape.head_dim)
            attended = F.scaled_dot_product_attention(
                folded,
                keys[segment.slot, :, :length].unsqueeze(0),
                values[segment.slot, :, :length].unsqueeze(0),
                attn_mask=mask,
            )
            unfolded = attended.view(shape.heads, segment.count, shape.head_dim).transpose(0, 1)
            outputs.append(unfolded.reshape(segment.count, -1))
        return torch.cat(outputs)


def _causal_mask(segment: Segment, shape: Shape) -> torch.Tensor | None:
    """``[group * count, start + count]``, true where a query may look; one token needs none."""
    if segment.count == 1:
        return None
    length = segment.start + segment.count
    causal = torch.ones(segment.count, length, dtype=torch.bool).tril(segment.start)
    return causal.repeat(shape.heads // shape.kv_heads, 1)


def _rotary_tables(shape: Shape, max_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _parameter_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model, without ``lm_head.weight`` where it is tied."""
    hidden = shape.hidden_size
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tie_word_embeddings:
        sizes["lm_head.weight"] = (shape.vocab_size, hidden)
    for index in range(shape.layers):
        sizes |= {
            f"model.layers.{index}.{name}.weight": size
            for name, size in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (query, hidden),
                "self_attn.k_proj": (key, hidden),
                "self_attn.v_proj": (key, hidden),
                "self_attn.o_proj": (hidden, query),
                "self_attn.q_norm": (shape.head_dim,),
                "self_attn.k_norm": (shape.head_dim,),
                "mlp.gate_proj": (shape.intermediate_size, hidden),
                "mlp.up_proj": (shape.intermediate_size, hidden),
                "mlp.down_proj": (hidden, shape.intermediate_size),
            }.items()
        }
    return sizes


def _fuse(shape: Shape, weights: Mapping[str, torch.Tensor], index: int) -> _Layer:
    def weight(name: str) -> torch.Tensor:
        return weights[f"model.layers.{index}.{name}.weight"]

    return _Layer(
        input_norm=weight("input_layernorm"),
        qkv=torch.cat([weight(f"self_attn.{part}_proj") for part in "qkv"]),
        qk_norm=torch.cat(
            (
                weight("self_attn.q_norm").expand(shape.heads, -1),
                weight("self_attn.k_norm").expand(shape.kv_heads, -1),
            )
        ),
        output=weight("self_attn.o_proj"),
        post_norm=weight("post_attention_layernorm"),
        gate_up=torch.cat((weight("mlp.gate_proj"), weight("mlp.up_proj"))),
        down=weight("mlp.down_proj"),
    )
