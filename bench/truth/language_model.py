"""The language model of the cases here; each file brings the block that it is made of."""
import torch.nn as nn
import torch.nn.functional as F


class LanguageModel(nn.Module):
    """`blocks` of (batch, time, width) between an embedding and a head; forward takes ids and gives logits."""

    def __init__(self, blocks, vocabulary=8192, width=512):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, run=lambda block, x: block(x)):
        x = self.tokens(ids)
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.norm(x))


def language_loss(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
