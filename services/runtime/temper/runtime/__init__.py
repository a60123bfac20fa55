"""What every service shares: messages, time, storage, configuration, processes. No domain words.

`errors` is at the bottom, `service` on top; README.md beside this package lists the modules.
"""

import os

# gRPC's C core reads this once, when it is first imported, and tells of every closed connection otherwise.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
