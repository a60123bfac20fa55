"""The client of temper: SDK, CLI, embedded platform, live view and report. It speaks gRPC only.

    jobfile   a TOML file -> JobSpec; knows nothing but the contract
    sdk       calls over gRPC, sync and asyncio, with frozen results
    platform  the embedded supervisor: one broker and six services as processes of this machine
    live      folds the watch of a job into pictures: bars on a terminal, lines elsewhere, a summary
    report    one HTML file about a job, from queries only
    cli       `temper`: parses arguments, then imports what the command needs

`cli` knows all others, `platform` and `report` know `sdk`, `live` and `jobfile` know nobody.
"""
