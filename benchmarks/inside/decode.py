"""A layer's attention to what a decode has in its cache, by metadata that a builder made."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from tests.v1.worker.tiny_models import Layers


def of_first_layer(layers: Layers, metadata: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """The decode of the first layer that the metadata is for, over random queries and caches.

    metadata: by layer, of a batch of decodes, whose block tables name the blocks in use.
    """
    name, of = next(iter(metadata.items()))
    layer = layers.vllm_config.compilation_config.static_forward_context[name]
    group = next(
        group for groups in layers.attn_groups for group in groups if name in group.layer_names
    )
    spec = group.get_metadata_builder(0).kv_cache_spec
    latent = group.backend.is_mla()
    table = of.decode.block_table if latent else of.block_table
    count = len(table)
    torch.manual_seed(0)
    random = functools.partial(torch.randn, dtype=spec.dtype, device=layers.device)
    kv_cache = random(
        group.backend.get_kv_cache_shape(
            int(table.max()) + 1, spec.block_size, spec.num_kv_heads, spec.head_size
        )
    )
    query = random(count, layer.num_heads, spec.head_size)
    if latent:
        return lambda: layer.impl.forward_mqa(query, kv_cache, of, layer)[0]
    key, value = (random(count, spec.num_kv_heads, spec.head_size) for _ in range(2))
    output = torch.empty_like(query)
    return lambda: layer.impl.forward(layer, query, key, value, kv_cache, of, output)
