"""The sandbox service: environments materialised, tool calls executed in isolation, results verified apart."""
