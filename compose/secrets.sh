#!/bin/sh
# Makes the random secrets that compose.yaml mounts. Existing files are kept; delete the directory to rotate.
set -eu
umask 077
dir=$(dirname "$0")/secrets
mkdir -p "$dir"
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
for name in nats-token api-token s3-access-key s3-secret-key clickhouse-password; do
    [ -s "$dir/$name" ] || random >"$dir/$name"
done
cat >"$dir/nats.conf" <<CONF
listen: 0.0.0.0:4222
http: 0.0.0.0:8222
max_payload: 1048576
jetstream { store_dir: /data }
authorization { token: "$(cat "$dir/nats-token")" }
CONF
cat >"$dir/s3.json" <<CONF
{"identities": [{"name": "temper",
  "credentials": [{"accessKey": "$(cat "$dir/s3-access-key")", "secretKey": "$(cat "$dir/s3-secret-key")"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
CONF
chmod 0444 "$dir"/*   # containers run as other users; the directory itself stays 0700
echo "secrets are in $dir"
