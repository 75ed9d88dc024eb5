"""The published Python client judges the forms of the wire: what is pushed in each form, at once
and through the client's buffer, must be consumed in each form exactly as JSON alone gives it.

usage: forms.py HOST:PORT (run by scripts/forms.sh)

The client falls back to JSON where a form is not served and says nothing, so its own encoder and
decoder are counted. That the broker kept the client's compressed groups is read from its counter.
"""

import asyncio
import contextlib
import io
import itertools
import json
import sys
import urllib.request

from queen import Queen
from queen.http import http_client

MESSAGES = 120
PARTITIONS = ["one", "two", "città/3", "four", "one", "five"]
ODD = [
    None,
    0,
    "",
    [],
    {},
    -1.5e300,
    2**64 - 1,
    'é 🦀 \0 " \\ \u2028',
    {"a": {"b": [[[None, True]]]}, "": "x" * 9_000},
    {"encrypted": "eA==", "iv": "eA==", "authTag": "eA=="},
]


class Seen:
    """What the client made and read since the start."""

    binary = compressed = framed = transactions = 0


def count_forms():
    encode, decode = http_client.binary_push_body, http_client.decode_pop_frames

    def counted_encode(items, compress):
        body = encode(items, compress)
        Seen.binary += body is not None and body[:4] == b"QPB1"
        Seen.compressed += body is not None and body[4] & 8 != 0
        return body

    frames = http_client.transaction_frames

    def counted_frames(request):
        framed = frames(request)
        Seen.transactions += framed is not None and framed[0][:4] == b"QTB1"
        return framed

    http_client.transaction_frames = counted_frames

    def counted_decode(content):
        Seen.framed += 1
        return decode(content)

    http_client.binary_push_body, http_client.decode_pop_frames = counted_encode, counted_decode


def check(right, wrong):
    if not right:
        raise AssertionError(wrong)


def items():
    """(partition, transaction id, data), odd data among plain, in runs over the partitions."""
    return [
        (
            PARTITIONS[n // 7 % len(PARTITIONS)],
            f'id "{n}" é',
            ODD[n % 13] if n % 13 < len(ODD) else {"n": n},
        )
        for n in range(MESSAGES)
    ]


def rows(messages):
    """Each message with its place in its partition, by partition."""
    places = {}
    out = []
    for partition, transaction_id, data in messages:
        place = places[partition] = places.get(partition, -1) + 1
        out.append((partition, place, transaction_id, data))
    return sorted(out, key=lambda row: row[:2])


def metric(broker, key):
    with urllib.request.urlopen(f"http://{broker}/metrics", timeout=10) as answer:
        return sum(shard[key] for shard in json.load(answer)["shards"])


def runs():
    """Neighbours of one partition, as the client pushes them."""
    for partition, run in itertools.groupby(items(), key=lambda item: item[0]):
        yield partition, [{"data": data, "transactionId": tid} for _, tid, data in run]


async def push_direct(queen, name):
    """Pushes, then again: the second time every message is a duplicate of the first."""
    told = {}
    for partition, run in runs():
        results = await queen.queue(name).partition(partition).push(run)
        check(all(r["status"] == "queued" for r in results), results)
        check(len(results) == len(run), results)
        told.update((r["transaction_id"], (r["message_id"], r["offset"])) for r in results)
    for partition, run in runs():
        again = await queen.queue(name).partition(partition).push(run)
        for r in again:
            same = told[r["transaction_id"]] == (r["message_id"], r["offset"])
            check(r["status"] == "duplicate" and same, r)
    return told


async def push_buffered(queen, name):
    options = {"message_count": 16, "time_millis": 1_000}
    for partition, run in runs():
        await queen.queue(name).partition(partition).buffer(options).push(run)
    await queen.flush_all_buffers()
    stats = queen.get_buffer_stats()
    check(stats["totalBufferedMessages"] == 0, stats)


async def consume(queen, name, each):
    """Consumes with acks until all have come, and looks that nothing is left."""
    got = []

    async def one(message):
        got.append(message)

    async def batch(messages):
        got.extend(messages if isinstance(messages, list) else [messages])

    queue = queen.queue(name).batch(17).partitions(3).limit(MESSAGES)
    queue = queue.idle_millis(20_000).timeout_millis(500)
    await (queue.each().consume(one) if each else queue.consume(batch))
    left = await queen.queue(name).batch(10).partitions(9).wait(False).pop()
    check(not left, f"consumed and acked, yet left: {left}")
    return got


async def go(broker, push, buffered, framed, encrypted):
    """Goes one way; the messages as they came out."""
    name = f"python.forms.{push}-{buffered}-{framed}-{encrypted}"
    forms = {
        "binary_push": push != "json",
        "push_compression": push == "compressed",
        "framed_pop": framed,
    }
    seen = (Seen.binary, Seen.compressed, Seen.framed)
    async with Queen(url=f"http://{broker}", **forms) as queen:
        if encrypted:
            await queen.queue(name).config({"encryption_enabled": True}).create()
        kept, recoded = metric(broker, "groupsKept"), metric(broker, "groupsRecoded")
        told = {}
        if buffered:
            await push_buffered(queen, name)
        else:
            told = await push_direct(queen, name)
        kept = metric(broker, "groupsKept") - kept
        recoded = metric(broker, "groupsRecoded") - recoded
        messages = await consume(queen, name, each=not buffered)
    now = (Seen.binary, Seen.compressed, Seen.framed)
    spoken = tuple(b > a for a, b in zip(seen, now))
    # A framed answer cannot carry what is encrypted: the broker answers in JSON.
    wanted = (push != "json", push == "compressed", framed and not encrypted)
    check(spoken == wanted, f"binary, compressed, framed: {spoken}, not {wanted}")
    compressed = push == "compressed"
    fates = (kept > 0, recoded > 0)
    check(
        fates == (compressed and not encrypted, compressed and encrypted),
        f"{kept} groups were kept and {recoded} written anew",
    )
    for message in messages:
        tid = message["transactionId"]
        check(tid not in told or told[tid] == (message["id"], message["offset"]), message)
        check(message["traceId"] is None and message["producerSub"] is None, message)
    return rows((m["partition"], m["transactionId"], m["data"]) for m in messages)


async def transact(broker, compressed):
    """Moves each message on in a transaction with its ack, some of them twice."""
    name = f"python.forms.transact-{compressed}"
    seen = Seen.transactions
    forms = {"binary_push": compressed, "push_compression": compressed}
    async with Queen(url=f"http://{broker}", **forms) as queen:
        for partition, run in runs():
            await queen.queue(name).partition(partition).push(run)
        kept = metric(broker, "groupsKept")
        moved = 0
        while moved < MESSAGES:
            messages = await queen.queue(name).batch(7).partitions(1).wait(False).pop()
            check(messages, f"{moved} moved, and nothing is left")
            transaction = queen.transaction()
            for message in messages:
                again = {"data": message["data"], "transactionId": message["transactionId"]}
                transaction = transaction.ack(message, "completed")
                target = transaction.queue(f"{name}.out").partition(message["partition"])
                transaction = target.push([again])
            told = await transaction.commit()
            results = told["results"]
            check(told["success"] and len(results) == 2 * len(messages), told)
            kinds = [r["type"] for r in results]
            check(kinds == ["ack", "push"] * len(messages), kinds)
            ids = [r["transactionId"] for r in results[1::2]]
            check(ids == [m["transactionId"] for m in messages], ids)
            moved += len(messages)
        kept = metric(broker, "groupsKept") - kept
        check((kept > 0) == compressed, f"{kept} groups of transactions were kept as they came")
        left = await queen.queue(name).batch(10).partitions(9).wait(False).pop()
        check(not left, f"acked, yet left: {left}")
        messages = await consume(queen, f"{name}.out", each=False)
    spoken = Seen.transactions > seen
    check(spoken == compressed, f"binary transactions: {spoken}, not {compressed}")
    return rows((m["partition"], m["transactionId"], m["data"]) for m in messages)


async def main():
    broker = sys.argv[1]
    count_forms()
    # JSON in and out comes first: it is what the others are held against.
    ways = [
        (push, buffered, framed, False)
        for framed in (False, True)
        for buffered in (False, True)
        for push in ("json", "binary", "compressed")
    ]
    ways += [(push, False, True, True) for push in ("json", "compressed")]
    reference = rows(items())
    for way in ways:
        try:
            # The client tells the terminal when it closes.
            with contextlib.redirect_stdout(io.StringIO()):
                got = await go(broker, *way)
            check(len(got) == len(reference), f"{len(got)} messages of {len(reference)}")
            for row, wanted in zip(got, reference):
                check(repr(row) == repr(wanted), f"{row}, not {wanted}")
        except Exception as why:
            sys.exit(f"python, (push, buffered, framed, encrypted) {way}: {why!r}")
        reference = got
    for compressed in (False, True):
        with contextlib.redirect_stdout(io.StringIO()):
            got = await transact(broker, compressed)
        check(repr(got) == repr(reference), f"transactions, compressed {compressed}: {got}")
    print(f"python: {len(ways)} ways of {MESSAGES} messages, and transactions, all as JSON gives them")


asyncio.run(main())
