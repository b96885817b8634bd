"""Embeddings whose rows, and their optimizer's state, live in a store. Needs torch.

    import gpmstore.torch

    users = gpmstore.torch.Embedding("/dev/shm/users.pool", 128, gpmstore.Normal(0, 0.02),
                                     gpmstore.torch.Adam(lr=1e-3), executor="cuda")
    loss = model(users(ids)).mean()
    loss.backward()                  # also updates the rows; after a crash they are in the pool
"""

from ._modules import Embedding, EmbeddingBag
from ._optimizers import SGD, Adagrad, Adam, Optimizer

__all__ = ["SGD", "Adagrad", "Adam", "Embedding", "EmbeddingBag", "Optimizer"]
