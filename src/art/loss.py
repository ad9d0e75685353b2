"""Not offered, and an ``ImportError`` that says so: losses are computed where the weights are, in the service.

Choose one with ``backend.train(…, algorithm=…)``, or give your own with ``loss=``; see docs/algorithms.md.
"""

raise ImportError(
    "art.loss is not here: the frontend holds no tensors. Choose an algorithm with backend.train(…, algorithm='cispo'), or give "
    "your own with backend.train(…, loss='my_module:my_loss'); both are described in docs/algorithms.md."
)
