"""The scheduler: jobs, their mix of domains, their credits, and who drives them.

| part            | knows                                                            | pure |
| --------------- | ---------------------------------------------------------------- | ---- |
| `mixer`         | shares -> a stream of domains                                    | yes  |
| `curriculum`    | tasks and their success -> a stream of tasks of one domain       | yes  |
| `shares`        | evaluations on the way -> shares that move, seesaws              | yes  |
| `sampler`       | mixer + curricula, with one serialisable state                   | yes  |
| `credits`       | how many groups may be under way                                 | yes  |
| `ledger`        | which group indexes are published, settled, in flight            | yes  |
| `groups`        | a draw -> the command that rollout workers get                   | yes  |
| `evaluation`    | records of one evaluation point -> pass@1, pass@k, intervals     | yes  |
| `points`        | which evaluations were asked for, and what has come back         | yes  |
| `acceptance`    | evaluations and a job's bounds -> accepted or why not            | yes  |
| `defaults`      | what a job file may leave out                                    | yes  |
| `validate`      | what a job file may not say                                      | yes  |
| `facts`         | everything known about one job, saved and restored as one value  | yes  |
| `state`         | one job: signals in, effects out                                 | yes  |
| `progress`      | records -> the counters people watch                             | yes  |
| `watchdog`      | no progress -> a sentence naming what is waited for              | yes  |
| `actor`, `feeds`| one live activation of `state`: reads, writes, publishes         |      |
| `steward`       | which jobs this process drives (leases)                          |      |
| `service`, …    | the gRPC services                                                |      |

The pure parts import neither asyncio nor grpc nor a clock; `state` may use every pure part, and only `actor`
uses `state`.
"""
