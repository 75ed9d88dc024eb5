//! A log that something else has had its hands on, and one that cannot open its next file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Broker, Client, Usage, Wire};
use crate::{detail, drain, restart, sleep_ms, small_segments};

const PARTITIONS: u64 = 8;
const EACH: u64 = 60;

/// Some segments of 4 MiB on each shard.
fn fill(client: &mut Client) {
    for round in 0..EACH {
        let item = |p: u64| {
            let text = "z".repeat(30_000);
            format!(
                "{{\"queue\":\"whole\",\"partition\":\"p{p}\",\"transactionId\":\"t{round}\",\
                 \"payload\":\"{round} {text}\"}}"
            )
        };
        client.push_items(&(0..PARTITIONS).map(item).collect::<Vec<_>>().join(","));
    }
}

/// All messages are there, for a group that has not read them yet.
fn check_whole(client: &mut Client, group: &str) {
    let target = format!(
        "whole?batch=100&partitions=8&autoAck=true&consumerGroup={group}&subscriptionMode=all"
    );
    let mut found = 0;
    loop {
        let popped = client.pop(&target);
        if popped.is_empty() {
            break;
        }
        for message in &popped {
            assert!(message.data.starts_with(&format!("\"{} z", message.offset)), "{message:?}");
        }
        found += popped.len() as u64;
    }
    assert_eq!(found, PARTITIONS * EACH);
}

/// Files of the first shard that has them, by their ending; segments oldest first.
fn files(broker: &Broker, ending: &str) -> Vec<PathBuf> {
    let mut shards: Vec<PathBuf> =
        fs::read_dir(broker.data_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    shards.sort();
    for shard in shards.iter().filter(|path| path.is_dir()) {
        let entries = fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> =
            entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
        found.sort();
        if !found.is_empty() {
            return found;
        }
    }
    panic!("no file ends with {ending}");
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// What is done to a file; its bytes are put back afterwards.
type Surgery = fn(&Path, &[u8]);

fn flip_one_bit(path: &Path, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let place = bytes.len() / 3 + bytes[bytes.len() / 3..].iter().position(|b| *b == b'z').unwrap();
    bytes[place] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut_the_last_mebibyte(path: &Path, bytes: &[u8]) {
    fs::write(path, &bytes[..bytes.len() - (1 << 20)]).unwrap();
}

fn pad_with_zeros(path: &Path, bytes: &[u8]) {
    fs::write(path, [bytes, &[0; 1 << 20]].concat()).unwrap();
}

fn zero_a_run(path: &Path, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let at = bytes.len() / 2;
    bytes[at..at + 8_192].fill(0);
    fs::write(path, bytes).unwrap();
}

fn delete(path: &Path, _: &[u8]) {
    fs::remove_file(path).unwrap();
}

fn empty(path: &Path, _: &[u8]) {
    fs::write(path, []).unwrap();
}

/// A damaged log is refused by the name of the file that is wrong, and stays as it is: with the
/// file put back the broker starts and has everything.
#[test]
fn damage_to_a_sealed_segment_is_refused_by_name_and_costs_nothing_else() {
    let mut broker = small_segments();
    fill(&mut broker.client());
    assert!(broker.terminate().success());
    let segments = files(&broker, ".seg");
    assert!(segments.len() >= 3, "{segments:?}");
    let surgeries: [(&str, Surgery); 5] = [
        ("one bit", flip_one_bit),
        ("cut", cut_the_last_mebibyte),
        ("zeros", zero_a_run),
        ("deleted", delete),
        ("empty", empty),
    ];
    for (what, surgery) in surgeries {
        for segment in &segments[..2] {
            let bytes = fs::read(segment).unwrap();
            surgery(segment, &bytes);
            let told = broker.refused();
            assert!(told.contains(name(segment)), "{what} of {}: {told}", name(segment));
            let again = broker.refused();
            assert!(again.contains(name(segment)), "{what}, the second time: {again}");
            fs::write(segment, &bytes).unwrap();
        }
        let now = files(&broker, ".seg");
        assert_eq!(now, segments, "{what}: files came or went");
    }
    broker.restart();
    check_whole(&mut broker.client(), "put-back");
    check_whole(&mut restart(&mut broker, false), "killed");
}

/// Zeros behind the end of a file are nothing: it starts, has everything, and goes on from there.
#[test]
fn zeros_behind_the_end_of_a_file_are_no_messages() {
    let mut broker = small_segments();
    fill(&mut broker.client());
    for (round, clean) in [true, false].into_iter().enumerate() {
        if clean {
            assert!(broker.terminate().success());
        } else {
            broker.kill9();
        }
        for segment in files(&broker, ".seg") {
            pad_with_zeros(&segment, &fs::read(&segment).unwrap());
        }
        broker.restart();
        let mut client = broker.client();
        check_whole(&mut client, &format!("padded-{round}"));
        let pushed = client.push_one("after", "p", "", "1");
        assert_eq!(pushed["offset"], round, "{pushed}");
    }
    assert_eq!(drain(&mut restart(&mut broker, false), "after").len(), 2);
}

#[test]
fn a_missing_list_of_segments_is_not_taken_for_an_empty_log() {
    let mut broker = small_segments();
    fill(&mut broker.client());
    broker.kill9();
    let manifest = files(&broker, "manifest").remove(0);
    let bytes = fs::read(&manifest).unwrap();
    for surgery in [delete as Surgery, empty] {
        surgery(&manifest, &bytes);
        let told = broker.refused();
        assert!(told.contains("manifest"), "{told}");
        fs::write(&manifest, &bytes).unwrap();
    }
    // Of its two copies one is enough.
    let mut half = bytes.clone();
    half[..bytes.len() / 2].iter_mut().for_each(|byte| *byte ^= 0xFF);
    fs::write(&manifest, half).unwrap();
    broker.restart();
    check_whole(&mut broker.client(), "one-copy");
    // A shard's whole folder gone is no fresh start either.
    assert!(broker.terminate().success());
    let folder = manifest.parent().unwrap();
    let aside = folder.with_extension("aside");
    fs::rename(folder, &aside).unwrap();
    let told = broker.refused();
    assert!(told.contains(name(folder)), "{told}");
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::rename(&aside, folder).unwrap();
    broker.restart();
    check_whole(&mut broker.client(), "folder-back");
}

/// Without a free descriptor for the next segment, pushes wait or are refused; nothing is lost,
/// no offset is skipped, and it goes on by itself.
#[test]
fn a_segment_that_cannot_be_opened_for_lack_of_descriptors_is_only_late() {
    let mut broker = small_segments();
    let mut client = broker.client();
    let mut watching = broker.client();
    client.push_one("late", "p", "first", "0");
    let pid = broker.pid().unwrap();
    sleep_ms(500);
    set_open_files(pid, Usage::of(pid).open_files as u64);
    let address = broker.address();
    let pusher = std::thread::spawn(move || {
        let text = "w".repeat(100_000);
        let mut stored = 0;
        let limit = Instant::now() + Duration::from_secs(60);
        while stored < 300 {
            assert!(Instant::now() < limit, "stuck at {stored} with {address}");
            let body = format!(
                "{{\"items\":[{{\"queue\":\"late\",\"partition\":\"p\",\
                 \"transactionId\":\"n{stored}\",\"payload\":\"{text}\"}}]}}"
            );
            let answer = client.post("/api/v1/push", body).unwrap();
            if answer.status == 201 {
                assert_eq!(answer.json()[0]["offset"], stored + 1, "{}", answer.text());
                stored += 1;
            } else {
                assert!(matches!(answer.status, 429 | 503 | 507), "{}", answer.text());
                sleep_ms(20);
            }
        }
    });
    // 30 MB are more than the segments that lie ready.
    sleep_ms(3_000);
    assert!(!pusher.is_finished(), "there was a descriptor to be had");
    assert_eq!(watching.get("/health").unwrap().status, 200, "it is no failure of the disk");
    set_open_files(pid, 4_096);
    pusher.join().unwrap();
    drop(watching);
    let mut client = restart(&mut broker, false);
    assert_eq!(detail(&mut client, "late")["totals"]["total"], 301);
    let offsets: Vec<u64> = drain(&mut client, "late").iter().map(|m| m.offset).collect();
    assert_eq!(offsets, (0..301).collect::<Vec<_>>());
}

fn set_open_files(pid: u32, files: u64) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both structs live through the calls; no new limit, and no old one, is asked for.
    unsafe {
        assert_eq!(libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit), 0);
        limit.rlim_cur = files.min(limit.rlim_max);
        let done = libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut());
        assert_eq!(done, 0);
    }
}
