#!/usr/bin/env python3
"""Writes the tables of BENCHMARKS.md from what lanemq-bench printed.

usage: bench_table.py standard|compare BENCHMARKS.md RESULTS [SYSCALLS] --data DIR [...]

RESULTS holds one line of JSON for each run, with the label that the calling script gave it. Runs
of one label become one row: medians, with the least and the most behind them. The section stands
between two marks; what is outside them is left alone.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HEAD = """# Benchmarks

Figures from the scripts named in each section, with the machine they were made on. They are for
comparing builds and brokers on one machine, not machines: on a shared host with a virtual disk a
rate moves by a factor of two from one hour to the next, processor time by a tenth.
"""

NOTES = {
    "standard": """
`scripts/bench.sh` runs each row {repeats} times, all rows in turn, each run with a fresh broker on
a fresh directory; a figure is the median, in brackets the least and the most. The driver
(`lanemq-bench`) is one thread on the same machine, and so takes a part of it: its share is in the
table. Messages are JSON documents of 256 bytes with transaction ids of their own, so every push is
checked for repeats; 200 partitions, one of them for each push. Every push is answered when it is
synced, every pop when its lease is, every ack when it is. Every answer is checked, in `push-pop`
and `jobs` also that each message came exactly once and in order.

- `binary` is the plain binary push, `framed` frames built and compressed by the client; `counts`
  means that a push is answered by numbers and not message by message.
- `push-pop` has as many consumers as producers; a message counts when it is acked, so a figure is
  for push, pop and ack together. `jobs` does the same for one message at a time, each call a
  request of its own.
- Latency is from a request's sending to its answer; end to end from a push's sending to the pop
  that brought the message, which with producers at full speed is mostly the backlog's length. The
  rows with a rate are sent on a schedule, and their latencies count from the time that was meant.
- Server CPU is user + system of the whole process for a million messages. Bytes written are those
  that the kernel counts for the process, for each byte of payload.
- The server has all cores, and so has the driver, but in the rows with `one core`: there both shards
  are on one (`--cpus`), and the driver stays on the others.
""",
    "compare": """
`scripts/compare.sh` gives LaneMQ and its peers the same load from the same driver: 64 connections,
JSON documents of 256 bytes, 200 partitions; first pushes for {seconds} s, then pops and acks all
of it. Brokers take turns, {repeats} times; each run has a fresh server on a fresh directory of the
same disk. A figure is the median, in brackets the least and the most; a ratio is that of LaneMQ's
median to the other's, above 1 where LaneMQ's is larger. LaneMQ runs with JSON and with frames
compressed by the client and answered by counts (`framed`), each on all cores, of which the driver
takes its part, and with both shards on one (`core`), where it is one thread as Redis is. With
`core` the driver stays on the others.

What is not alike: LaneMQ and `redis always` sync before they answer a push, the others do not: a
crash of the machine loses what they answered last. LaneMQ syncs leases and acks too, which Redis
does with `always`, and NATS never: its acks are not answered at all, here one ping for the acks of
a pop is. LaneMQ speaks HTTP with JSON or frames, which a proxy can carry; the others their own
protocols, and the driver pipelines a batch of commands for them. LaneMQ checks each transaction
id for repeats; Redis has nothing of that kind and NATS's is left off. Redis is one thread and
keeps everything in memory; its snapshots and the rewriting of its log are off. It has no way to
hand out whichever partition is ready: each consumer has its own streams. NATS hands out messages
without regard to their subject, so nothing keeps the order within one when several consumers
share it. With frames the payload is compressed by the driver, whose time is not the server's, and
is stored and synced compressed.

Transactions, for {transact_seconds} s: 64 connections, each transaction acks one message and
pushes one to another partition, for LaneMQ on another shard (the general case; where both lie on
one shard it is cheaper), in JSON, each push with a transaction id of its own that is checked for
repeats. The acks' leases are taken before the clock starts. PostgreSQL marks one row and inserts
one, both by primary key, with prepared statements in one round trip and one durable commit
(`synchronous_commit`, `fsync` and `full_page_writes` on, all else as Debian's packages have it);
it has no index to find a job by, claims none, and no checkpoint falls into a run. Its processor
time is that of all its processes, its memory what they use and share. A run counts only if every
transaction was answered as committed and the server holds as many settled and added messages, or
rows, at its end. `postgres-core` has all its processes on one core.
""",
}


def median(values):
    return statistics.median(values)


def number(value):
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 1_000:
        return f"{value / 1000:.1f}k"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def spread(values):
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def read(path):
    """Runs by label, in the order of their first appearance; and how many were left out because
    the machine stood still in them."""
    runs, left_out = {}, 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            run = json.loads(line)
            if run["seconds_stood_still"] > 0:
                left_out += 1
            else:
                runs.setdefault(run["label"], []).append(run)
    return runs, left_out


def latency(runs, what, quantile):
    found = [row[quantile] for run in runs for row in run["latencies"] if row["what"] == what]
    return number(median(found)) if found else "–"


def cost(runs, key):
    found = [run["server"][key] for run in runs if run["server"] and run["server"][key] is not None]
    return median(found) if found else None


def show(value):
    return "–" if value is None else number(value)


def cpu(runs):
    return [
        run["server"]["user_per_million"] + run["server"]["system_per_million"] for run in runs
    ]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def form_of(run):
    counts = ", counts" if run["counts"] and run["form"] != "json" else ""
    rate = f", {number(run['rate_wanted'])}/s" if run["rate_wanted"] else ""
    return run["form"] + counts + rate


def standard(runs, syscalls):
    rates, costs = [], []
    for label, of_row in runs.items():
        first = of_row[0]
        name = [
            first["workload"],
            form_of(first) + (", one core" if label.startswith("core ") else ""),
            str(first["connections"]),
            str(first["batch"]),
        ]
        whole = "job" if first["workload"] == "jobs" else "end to end"
        rates.append(
            name
            + [
                spread([run["messages_per_second"] for run in of_row]),
                show(median([run["megabytes_per_second"] for run in of_row])),
                latency(of_row, "push", "p50") + " / " + latency(of_row, "push", "p99"),
                latency(of_row, "ack", "p50") + " / " + latency(of_row, "ack", "p99"),
                latency(of_row, whole, "p50") + " / " + latency(of_row, whole, "p99"),
            ]
        )
        counted = syscalls.get(label, [])
        costs.append(
            name
            + [
                spread(cpu(of_row)),
                show(cost(of_row, "user_per_million")),
                show(cost(of_row, "system_per_million")),
                show(cost(of_row, "cores")),
                show(median([run["driver_cores"] for run in of_row])),
                show(cost(of_row, "rss_mib")),
                show(cost(of_row, "written_per_byte")),
                show(cost(of_row, "messages_per_sync")),
                show(cost(of_row, "switches_per_request")),
                show(cost(counted, "syscalls_per_request")),
            ]
        )
    name = ["", "form", "connections", "batch"]
    rate_head = name + [
        "msg/s",
        "MB/s",
        "push p50 / p99 ms",
        "ack p50 / p99 ms",
        "end to end, or job, p50 / p99 ms",
    ]
    cost_head = name + [
        "server CPU-s/M",
        "user",
        "system",
        "server cores",
        "driver cores",
        "RSS MiB",
        "written/byte",
        "messages/sync",
        "switches/request",
        "system calls/request",
    ]
    return table(rate_head, rates) + "\n\n" + table(cost_head, costs)


# LaneMQ's subjects, and what stands for each in the head of a table.
OURS = {
    "lanemq": "JSON",
    "lanemq-framed": "framed",
    "lanemq-core": "JSON on one core",
    "lanemq-framed-core": "framed on one core",
}


def confined(subject):
    """Whether it had one core only."""
    return subject.endswith("-core")


def ratio(ours, theirs):
    return f"{ours / theirs:.2f}" if ours and theirs else "–"


def compare(runs, _syscalls):
    """Labels are `batch workload subject`."""
    kinds = {}
    for label, of_row in runs.items():
        batch, workload, subject = label.split(" ")
        kinds.setdefault((workload, int(batch)), {})[subject] = of_row
    parts = []
    for (workload, batch), subjects in kinds.items():
        rate = {
            name: median([run["messages_per_second"] for run in of_row])
            for name, of_row in subjects.items()
        }
        used = {name: median(cpu(of_row)) for name, of_row in subjects.items()}
        what = {"push": "push", "pop": "pop to ack", "txn": "transaction"}[workload]
        ours = [name for name in OURS if name in subjects]
        rows = []
        for name, of_row in subjects.items():
            # A peer with one core is compared with ours with one core.
            fair = [n for n in ours if confined(n) or not confined(name)]
            against = lambda values: " / ".join(
                ratio(values[n], values[name]) if n in fair else "–" for n in ours
            )
            is_peer = not name.startswith("lanemq")
            rows.append(
                [
                    name,
                    spread([run["messages_per_second"] for run in of_row]),
                    against(rate) if is_peer else "",
                    latency(of_row, what, "p50") + " / " + latency(of_row, what, "p99"),
                    spread(cpu(of_row)),
                    against(used) if is_peer else "",
                    show(cost(of_row, "cores")),
                    show(median([run["driver_cores"] for run in of_row])),
                    show(cost(of_row, "rss_mib")),
                ]
            )
        kind = {"push": "Push", "pop": "Pop and ack", "txn": "Transactions"}[workload]
        title = kind if workload == "txn" else f"{kind}, batch {batch}"
        forms = ": " + " / ".join(OURS[name] for name in ours) if len(ours) > 1 else ""
        head = [
            "",
            "transactions/s" if workload == "txn" else "msg/s",
            f"LaneMQ's rate to it{forms}",
            f"{what} p50 / p99 ms",
            "server CPU-s/M",
            f"LaneMQ's CPU to it{forms}",
            "server cores",
            "driver cores",
            "RSS MiB",
        ]
        parts.append(f"{title}:\n\n" + table(head, rows))
    return "\n\n".join(parts)


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def sync_ms(folder):
    """Median time of an fdatasync behind 4 KiB appended, so that a slow hour shows."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(200):
            os.write(file.fileno(), bytes(4096))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return median(times)


def machine(folder):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(file.readline().split()[1]) / (1 << 20)
    disk = output("findmnt", "-n", "-o", "SOURCE,FSTYPE", "-T", folder) or "unknown disk"
    return (
        f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB; "
        f"Linux {platform.release()}; {' '.join(disk.split())}, "
        f"4 KiB append + fdatasync {sync_ms(folder):.2f} ms (median, after the runs)"
    )


def replace(path, section, text):
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    try:
        with open(path, encoding="utf-8") as file:
            whole = file.read()
    except FileNotFoundError:
        whole = HEAD
    block = f"{begin}\n{text}\n{end}"
    if begin in whole and end in whole:
        before, rest = whole.split(begin, 1)
        whole = before + block + rest.split(end, 1)[1]
    else:
        whole = whole.rstrip("\n") + "\n\n" + block + "\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(whole)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=["standard", "compare"])
    parser.add_argument("target")
    parser.add_argument("results")
    parser.add_argument("syscalls", nargs="?")
    parser.add_argument("--data", required=True)
    parser.add_argument("--about", required=True)
    parser.add_argument("--seconds", default="")
    parser.add_argument("--transact-seconds", default="")
    args = parser.parse_args()

    runs, left_out = read(args.results)
    if not runs:
        sys.exit("bench_table.py: no runs to write about")
    syscalls = read(args.syscalls)[0] if args.syscalls else {}
    repeats = str(max(len(of_row) for of_row in runs.values()))
    write, title = {
        "standard": (standard, "Standard load"),
        "compare": (compare, "Beside other brokers"),
    }[args.section]
    numbers = {
        "repeats": repeats,
        "seconds": args.seconds,
        "transact_seconds": args.transact_seconds,
    }
    text = "\n".join(
        [
            f"## {title}",
            "",
            f"{datetime.date.today()}, {args.about}. {machine(args.data)}.",
            NOTES[args.section].format_map(numbers),
            write(runs, syscalls),
        ]
    )
    if left_out:
        text += f"\n\nLeft out: {left_out} runs in which the machine stood still."
    replace(args.target, args.section, text)


if __name__ == "__main__":
    main()
