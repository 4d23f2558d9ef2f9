"""Token pooling inside a pretrained Hugging Face encoder: its later layers have few tokens to process.

>>> import torch, transformers, knockout.hf
>>> config = transformers.BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=4, num_attention_heads=2)
>>> model = transformers.BertModel(config).eval()  # or AutoModel.from_pretrained(...)
>>> model = knockout.hf.pool(model, lengths={0: 64, 2: 16})  # after layer 0 there are 64 tokens, after layer 2 16
>>> batch = {"input_ids": torch.randint(100, (2, 128)), "attention_mask": torch.ones(2, 128, dtype=torch.int64)}
>>> batch["attention_mask"][1, 10:] = 0  # the second sequence has 10 tokens only
>>> out = model(**batch)
>>> out.last_hidden_state.shape, out.attention_mask.sum(dim=-1), out.leaders[1, 8:12]
(torch.Size([2, 16, 32]), tensor([16, 10]), tensor([ 8,  9, -1, -1]))
>>> knockout.hf.mean(out).shape  # mean pooling, with the mask of the remaining tokens
torch.Size([2, 32])

``model.save_pretrained(folder)`` saves the pools too, and ``knockout.hf.from_pretrained(folder)`` loads them.
"""

try:
    import transformers.masking_utils  # noqa: F401 - of version 5
except ImportError as error:
    raise ImportError("knockout.hf needs transformers 5 or later: pip install 'knockout-topk[hf]'") from error

from knockout.hf.families import Family, Tokens, register
from knockout.hf.model import PooledModel, PooledOutput
from knockout.hf.pooling import mean, pool
from knockout.hf.saving import from_pretrained

__all__ = ["Family", "PooledModel", "PooledOutput", "Tokens", "from_pretrained", "mean", "pool", "register"]
