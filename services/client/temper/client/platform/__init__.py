"""The embedded platform: one broker and six services as processes of this machine, kept alive by one supervisor.

layout      files of a data directory        lock      one platform per data directory
services    what is started, with which settings and extras
guard       a child that cannot outlive its parent
child       one process: start, wait, end     keeper    restarts a child, within limits
broker      nats-server as a child            ready     bounded waits for health
supervisor  all of it: start in order, wait, stop in order
detached    the supervisor in the background, for `temper up`
"""

from temper.client.platform.layout import DataDir
from temper.client.platform.supervisor import Platform

__all__ = ["DataDir", "Platform"]
