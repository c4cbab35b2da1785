"""Writes a GGUF model as transformers keeps it; run by the Python that has vLLM, not by ours.

python convert.py FILE.gguf FOLDER
"""

import importlib
import sys
from pathlib import Path
from typing import Any


def convert(source: Path, target: Path) -> None:
    """Dequantize `source` to bfloat16 and save model and tokenizer in `target`."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    found = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    dequantize = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **found, dtype=torch.bfloat16, quantization_config=dequantize
    )
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(**found).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
