"""Parts of the platform in one process on simulated time, for benchmarks of pace. Not a benchmark itself."""
