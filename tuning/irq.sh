#!/usr/bin/env bash
# Moves the interrupts of a network card to given cores.
#
# usage: tuning/irq.sh INTERFACE CPU-LIST        (as root; for example: tuning/irq.sh eth0 0-1)
#
# Why: a shard is pinned to its core, and every interrupt there takes time from it that no other
# shard can give back. Give the card one or two cores, and LaneMQ the others with --cpus. irqbalance
# must be off, or it moves the interrupts again. Lasts until the next boot.
set -euo pipefail

[[ $# -eq 2 ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
interface=$1 cpus=$2
[[ -d /sys/class/net/$interface ]] || { echo "irq.sh: no interface $interface" >&2; exit 1; }
if pgrep -x irqbalance >/dev/null; then
    echo "irq.sh: irqbalance runs and would undo this: systemctl disable --now irqbalance" >&2
    exit 1
fi

moved=0
for irq in /sys/class/net/"$interface"/device/msi_irqs/*; do
    [[ -e $irq ]] || continue
    echo "$cpus" >"/proc/irq/${irq##*/}/smp_affinity_list"
    moved=$((moved + 1))
done
[[ $moved -gt 0 ]] || { echo "irq.sh: $interface lists no interrupts of its own" >&2; exit 1; }
echo "irq.sh: $moved interrupts of $interface on cores $cpus"
