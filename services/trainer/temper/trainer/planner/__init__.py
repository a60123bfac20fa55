"""Which parallel layout a model should be trained in: memory, time and the reasons, before a single device is asked for.

    shapes    what a config.json says about sizes and work
    machine   what a device holds, computes and moves
    layout    one way to cut a model and a batch; what makes a cut impossible
    memory    bytes on the fullest device
    speed     seconds of a step: work, bubble, traffic that is not hidden
    search    all layouts, ranked, with why each other one lost

Nothing here imports a framework: the numbers are formulas, held to published configurations and to what the CPU engine measures.
"""
