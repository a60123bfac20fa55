"""Where rows live: `base` is the seam, `chdb` runs inside this process, `http` asks a server, `fake` is the twin."""
