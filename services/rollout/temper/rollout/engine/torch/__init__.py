"""The default engine: plain torch on CPU, correct first.

Who may know whom, from the bottom up: ``architecture`` (config.json -> shapes), ``rope``, ``weights`` (safetensors ->
fused tensors), ``cache`` (where KV lies), ``model`` (one forward), ``sample`` (one draw), ``batch`` (which sequence is
where, one step), ``engine`` (the thread, the futures).
"""
