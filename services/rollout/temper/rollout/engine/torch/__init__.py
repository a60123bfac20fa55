"""The default engine: plain torch on CPU, correct first.

Who may know whom, from the bottom up:

* what a policy is: ``architecture`` (config.json -> shapes), ``rope``, ``quant``, ``weights`` (safetensors -> fused tensors);
* where KV lies: ``sizes``, ``arena`` (rows of one class), ``blocks`` (the book of the pool), ``kv`` (its tensor), ``context`` (one sequence's rows and blocks);
* who computes what: ``sequence``, ``roster`` (who is where), ``feed``, ``schedule`` (one step), ``drafts``;
* the numbers: ``merge``; ``lone``, ``items``, ``pages`` (decode), ``tiles`` (prefill), ``attention``; ``padding``, ``model`` (one forward), ``sample`` (one draw);
* all together: ``loop`` (one step after the other), ``fast`` (what the fast variant adds), ``memory`` and ``staging``
  (loading), ``inbox`` and ``engine`` (the thread, the futures).
"""
