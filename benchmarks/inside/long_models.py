"""Run in a release's environment: the configurations of a model and a draft, up to 1M tokens long.

python -m benchmarks.inside.long_models FOLDER

They have the tokens that `vllm bench latency` asks for, and no weights: it takes dummy ones.
"""

import sys
from pathlib import Path

import transformers
from tests.v1.worker.tiny_models import SIZES

LONG = {"vocab_size": 16384, "max_position_embeddings": 1 << 20}


def main(folder: str) -> None:
    """Write them to `FOLDER/target` and `FOLDER/draft`."""
    for name, layers in (("target", 2), ("draft", 1)):
        sizes = SIZES | LONG | {"num_hidden_layers": layers}
        config = transformers.LlamaConfig(**sizes, architectures=["LlamaForCausalLM"])
        config.save_pretrained(Path(folder) / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
