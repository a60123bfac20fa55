"""Where environments run while they are tested: `base` is the seam, `sandbox` the real host, `local` its twin."""
