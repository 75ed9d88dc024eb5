//! The house rules that a compiler does not know, checked over the source tree.
//!
//! - Imports point down the layers only (the map is in `src/lib.rs`).
//! - Below `server` nothing names a socket, a file, a thread, a clock or the driver.
//! - Nothing prints but `main`, `config` and the programs in `src/bin`, which name nothing of the
//!   broker above `model`; no note of unfinished work stays in `src`.
//! - Every file says first what it is for; functions and files stay small; `unsafe` has its places.
//!
//! Exceptions stand in `EXCEPTIONS`, each with its reason; one that is no longer needed fails too.
//! The rules are tried on planted snippets below, so that a rule that has gone blind is noticed.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use rules::{Finding, Rule};

/// (file, rule, what it finds, why that is right there).
const EXCEPTIONS: &[(&str, Rule, &str, &str)] = &[];

#[test]
fn the_tree_is_tidy() {
    let mut findings = Vec::new();
    for path in tree(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        findings.extend(rules::check(&path, &text));
    }
    let mut used = HashSet::new();
    findings.retain(|finding| {
        let excepted = EXCEPTIONS.iter().position(|(file, rule, what, _)| {
            *file == finding.file && *rule == finding.rule && finding.text.contains(what)
        });
        used.extend(excepted);
        excepted.is_none()
    });
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
    for (index, exception) in EXCEPTIONS.iter().enumerate() {
        assert!(used.contains(&index), "this exception is not needed any more: {exception:?}");
    }
}

/// Every file of the checkout, relative, less what is built or made at run time.
fn tree(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if entry.file_type().unwrap().is_file() {
                files.push(name);
            } else if !matches!(name.as_str(), ".git" | "target" | "data") {
                folders.push(path);
            }
        }
    }
    files.retain(|name| name != ".git");
    files.sort();
    files
}

/// The rules that a file of this name and text breaks.
fn broken(file: &str, text: &str) -> Vec<Rule> {
    let text = format!("//! A planted file.\n{text}\n");
    let mut rules: Vec<Rule> =
        rules::check(file, &text).into_iter().map(|finding| finding.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn imports_point_down() {
    let up = [
        ("src/base/ids.rs", "use crate::model::reply::Reply;"),
        ("src/log/io.rs", "use crate::{base::ids::Offset, proto::json};"),
        ("src/http/conn.rs", "use super::super::proto::json;"),
        ("src/proto/mod.rs", "use super::http;"),
        ("src/proto/pop.rs", "fn f() { let x = crate::broker::pop::Pop::new(); }"),
        ("src/broker/pop.rs", "use lanemq::server::disk;"),
        ("src/log/a/b.rs", "use super::super::super::broker::x;"),
        ("src/log/io.rs", "mod inner { use super::super::super::server; }"),
        ("src/server/conn.rs", "fn f(c: &crate::config::Config) {}"),
        ("src/log/io.rs", "use crate::{\n    base::{buf, ids},\n    broker::{self, effect},\n};"),
        ("src/model/error.rs", "use crate::*;"),
        ("src/stray/mod.rs", "use crate::base::ids;"),
        ("src/log/io.rs", "use crate::stray::thing;"),
        ("src/log/io.rs", "use crate as root;"),
        ("src/bin/x/main.rs", "use lanemq::proto::push;"),
        ("src/bin/x/main.rs", "fn f() { ::lanemq::server::serve::run(); }"),
        ("src/bin/x/main.rs", "use lanemq::{base::ids, broker};"),
        ("src/bin/x/main.rs", "use lanemq::*;"),
    ];
    for (file, text) in up {
        assert_eq!(broken(file, text), [Rule::Layer], "{file}: {text}");
    }
    let down = [
        (
            "src/log/io.rs",
            "use crate::base::{ids, buf};\nuse super::format;\nuse super::super::log::x;",
        ),
        ("src/broker/pop.rs", "use crate::log::io;\nuse crate::model;\npub(crate) struct A;"),
        ("src/broker/pop.rs", "mod tests { use super::super::pop::X; }\nuse self::x::y;"),
        ("src/proto/pop.rs", "// crate::http is not for us\nconst A: &str = \"crate::http::x\";"),
        ("src/main.rs", "use lanemq::config::Config;\nuse lanemq::server;"),
        ("src/bin/x/a.rs", "use crate::http;\nuse super::proto;\nuse lanemq::base::{ids, uuid};"),
        ("src/bin/x/a.rs", "use lanemq::model::frame;\nuse crate::server::Server;"),
        ("src/proto/pop.rs", "use std::http::crate_name; fn f<'a>(x: &'a str) -> char { 'a' }"),
    ];
    for (file, text) in down {
        assert_eq!(broken(file, text), [], "{file}: {text}");
    }
}

#[test]
fn the_core_does_no_io_and_reads_no_clock() {
    let banned = [
        "use glommio::Task;",
        "fn f() { unsafe_free(libc::getpid()) }",
        "use std::net::SocketAddr;",
        "use std::{fmt, fs};",
        "use std::{fmt, thread::{self, sleep}};",
        "fn f() { ::std::fs::read(p); }",
        "fn f() { let t = Instant::now(); }",
        "fn f() { let t = std::time::Instant :: now (); }",
        "use std::time::SystemTime;",
        "use std::os::fd::RawFd;",
    ];
    for text in banned {
        assert_eq!(broken("src/broker/pop.rs", text), [Rule::Banned], "{text}");
        assert_eq!(broken("src/server/disk.rs", text), [], "{text}");
        let in_test = format!("#[cfg(test)]\nmod tests {{\n{text}\n}}");
        assert_eq!(broken("src/broker/pop.rs", &in_test), [], "{text}");
    }
    assert_eq!(broken("src/main.rs", "use glommio::Task;"), [Rule::Banned]);
    assert_eq!(broken("src/bin/x/a.rs", "use libc::getpid;"), [Rule::Banned]);
    assert_eq!(broken("src/bin/x/a.rs", "fn f() { let t = Instant::now(); }"), []);
    assert_eq!(broken("src/config.rs", "use std::net::SocketAddr;"), []);
    assert_eq!(broken("src/log/io.rs", "// libc and std::fs\nfn f(libc_like: u8) {}"), []);
    let after_tests = "#[cfg(test)]\nmod tests {\n}\nuse std::fs;";
    assert_eq!(broken("src/log/io.rs", after_tests), [Rule::Banned]);
}

#[test]
fn only_main_prints_and_nothing_is_left_unfinished() {
    for text in ["fn f() { println!(\"x\"); }", "fn f() { eprintln!(); }", "fn f() { dbg!(1); }"] {
        assert_eq!(broken("src/server/conn.rs", text), [Rule::Print], "{text}");
    }
    assert_eq!(broken("src/main.rs", "fn f() { eprintln!(\"x\"); }"), []);
    assert_eq!(broken("src/bin/x/a.rs", "fn f() { println!(\"x\"); }"), []);
    assert_eq!(broken("src/config.rs", "fn f() { println!(\"x\"); }"), []);
    let unfinished = ["// TO\u{44}O later", "/// FIX\u{4d}E", "fn f() { todo!() }"];
    for text in unfinished {
        assert_eq!(broken("src/main.rs", text), [Rule::Unfinished], "{text}");
    }
    assert_eq!(broken("src/log/io.rs", "fn f() { unimplemented!(\"x\") }"), [Rule::Unfinished]);
    let outside = concat!("see ..", "/shared/x");
    assert_eq!(rules::check("README.md", outside).len(), 1);
    assert_eq!(rules::check("scripts/x.sh", concat!("DEVELOPERS", ".md")).len(), 1);
}

#[test]
fn files_say_what_they_are_for_and_stay_small() {
    let rule = |file: &str, text: &str| {
        rules::check(file, text).into_iter().map(|finding| finding.rule).collect::<Vec<_>>()
    };
    assert_eq!(rule("src/log/io.rs", "use std::fmt;\n"), [Rule::Purpose]);
    assert_eq!(rule("benches/a.rs", "// A bench.\n"), [Rule::Purpose]);

    let function = |lines: usize| format!("fn f() {{\n{}}}", "    a();\n".repeat(lines - 2));
    assert_eq!(broken("src/log/io.rs", &function(70)), []);
    assert_eq!(broken("src/log/io.rs", &function(71)), [Rule::Function]);
    assert_eq!(broken("tests/a.rs", &function(100)), []);
    assert_eq!(broken("tests/a.rs", &function(101)), [Rule::Function]);
    let braces = format!("fn f() -> &'static str {{\n\"}}\"; '}}'; // }}\n{}}}", "x;\n".repeat(80));
    assert_eq!(broken("src/log/io.rs", &braces), [Rule::Function]);
    let declared = format!("trait T {{\n    fn f(&self) -> [u8; 3];\n{}}}", "    \n".repeat(90));
    assert_eq!(broken("src/log/io.rs", &declared), []);

    let lines = |count: usize| "const A: u8 = 0;\n".repeat(count);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}", lines(900));
    assert_eq!(broken("src/log/io.rs", &format!("{}{tests}", lines(790))), []);
    assert_eq!(broken("src/log/io.rs", &lines(801)), [Rule::File]);
    assert_eq!(broken("tests/a.rs", &lines(1150)), []);
    assert_eq!(broken("tests/a.rs", &lines(1250)), [Rule::File]);
}

#[test]
fn unsafe_code_has_its_places() {
    let text = "fn f() { unsafe { g() } }";
    assert_eq!(broken("src/broker/pop.rs", text), [Rule::Unsafe]);
    assert_eq!(broken("src/bin/x/a.rs", text), [Rule::Unsafe]);
    assert_eq!(broken("src/broker/pop.rs", "// unsafe\nconst A: &str = r#\"unsafe\"#;"), []);
    for (file, _) in rules::UNSAFE_FILES {
        assert_eq!(broken(file, text), [], "{file}");
    }
}
