#!/usr/bin/env bash
# Sets a data disk's queue for LaneMQ, and says what its write cache does.
#
# usage: tuning/nvme.sh DISK        (as root; for example: tuning/nvme.sh nvme0n1)
#
# Changes, until the next boot:
#   scheduler = none    The log writes whole aligned chunks in order and waits for each sync. There
#                       is nothing to sort or merge, and a scheduler only adds its own latency.
#   read_ahead_kb = 0   All reads are O_DIRECT, which takes no read-ahead; other readers of the
#                       disk should not fill memory with it.
# Prints, and leaves alone: write_cache. "write back" means that a sync must reach the disk's own
# cache. That is safe, since every answer waits for the sync, but on disks without power-loss
# protection it is the largest part of a push's latency. Never mount with `nobarrier`.
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
queue=/sys/block/$1/queue
[[ -d $queue ]] || { echo "nvme.sh: no disk $1" >&2; exit 1; }
echo none >"$queue/scheduler"
echo 0 >"$queue/read_ahead_kb"
echo "nvme.sh: $1 scheduler: $(cat "$queue/scheduler")"
echo "nvme.sh: $1 write cache: $(cat "$queue/write_cache")"
