"""Run in a release's environment: write tiny models, and transformers' tokens for the requests.

python -m tests.serving.inside.reference FOLDER      writes FOLDER/<kind>/ and FOLDER/<kind>.json
"""

import json
import sys
from pathlib import Path

from tests.serving.traffic import mix
from tests.v1.worker.tiny_models import write_model

KINDS = ("lfm2", "granite")


def write(kind: str, folder: Path) -> None:
    """Write one model, and the greedy tokens for each request of the mix."""
    model = write_model(kind)
    model.reference.save_pretrained(folder / kind)
    tokens = [model.greedy(request.prompt, request.awaited).token_ids for request in mix()]
    (folder / f"{kind}.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    for name in KINDS:
        write(name, Path(sys.argv[1]))
