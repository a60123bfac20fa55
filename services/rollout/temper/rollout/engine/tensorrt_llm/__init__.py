"""TensorRT-LLM behind the engine seam, on its PyTorch backend with the Ray orchestrator.

The vendor's package comes with its container image and is imported when the engine starts, never before. From the bottom
up: ``names`` (what must be there, or the start is refused), ``capabilities`` (what is honoured and what is refused),
``sampling`` (requests and results in the vendor's words), ``weights`` (checked tensors, handles for the workers),
``gate`` (who may run), ``play`` (one request), ``engine``.
"""
