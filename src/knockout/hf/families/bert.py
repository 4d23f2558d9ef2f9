"""BERT and its like: absolute positions, which are part of the token embeddings."""

from knockout.hf.families.family import Family


class Bert(Family):
    """BERT, and families with the same layers."""

    kinds = ("bert", "camembert", "data2vec-text", "electra", "ernie", "roberta", "xlm-roberta")


class DistilBert(Family):
    """DistilBERT: the same, under another name."""

    kinds = ("distilbert",)
    layers = "transformer.layer"
