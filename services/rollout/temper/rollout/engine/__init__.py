"""The room of the inference engines: one protocol, one deterministic twin, one package per vendor.

``base`` is what the rest of the service sees. ``fake`` is the twin without torch. ``torch`` is the default engine and
the oracle of the conformance suite. ``tensorrt_llm`` is for NVIDIA GPUs. Nothing outside this room imports a vendor.
"""
