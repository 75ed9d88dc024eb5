//! The rules, each a function from a file to findings.

use std::fmt;

use crate::source::{self, SourcePath, Token};

/// Files that may hold `unsafe`, each with its reason.
pub const UNSAFE_FILES: &[(&str, &str)] = &[
    ("src/server/sys.rs", "system calls that neither std nor glommio offers"),
    ("src/server/ring.rs", "operations whose memory the kernel uses until they end"),
];

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 800;
/// Tests and benches tell stories; they get more room.
const TEST_FUNCTION_LINES: usize = 100;
const TEST_FILE_LINES: usize = 1_200;

const CONFIG_LEVEL: u8 = 5;
/// Programs beside the broker (`src/bin`) are its clients: they share the words of the wire with
/// it and none of the code that they are to measure.
const PROGRAMS: &str = "bin";
const PROGRAM_MAY_NAME: [&str; 2] = ["base", "model"];
const SERVER_LEVEL: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Layer,
    Banned,
    Print,
    Unfinished,
    Outside,
    Purpose,
    Function,
    File,
    Unsafe,
}

#[derive(Debug)]
pub struct Finding {
    pub file: String,
    pub line: usize,
    pub rule: Rule,
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {:?}: {}", self.file, self.line, self.rule, self.text)
    }
}

/// The level of a module at the crate's root. `main` stands above all, `lib` only lists modules.
fn level(module: &str) -> Option<u8> {
    Some(match module {
        "base" => 0,
        "model" => 1,
        "http" | "proto" | "log" => 2,
        "broker" => 3,
        "server" => SERVER_LEVEL,
        "config" => CONFIG_LEVEL,
        "main" | PROGRAMS => CONFIG_LEVEL + 1,
        _ => return None,
    })
}

pub fn check(file: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    {
        let mut add = |rule: Rule, line: usize, text: String| {
            found.push(Finding { file: file.to_owned(), line, rule, text });
        };
        outside(text, &mut add);
        if file.ends_with(".rs") {
            let code = source::code_only(text);
            let tokens = source::tokens(&code);
            if !text.starts_with("//! ") {
                add(Rule::Purpose, 1, "does not begin with a line of `//!`".to_owned());
            }
            sizes(file, text, &tokens, &mut add);
            if let Some(path) = file.strip_prefix("src/") {
                unfinished(text, &tokens, &mut add);
                unsafe_code(file, &tokens, &mut add);
                layers(&modules(path), &tokens, &mut add);
                let product = source::without_tests(&tokens);
                banned(&modules(path)[0], &product, &mut add);
                prints(&modules(path)[0], &product, &mut add);
            }
        }
    }
    found
}

type Add<'a> = &'a mut dyn FnMut(Rule, usize, String);

/// The module path of a file below `src`: `log/io.rs` is `log`, `io`; `log/mod.rs` is `log`.
fn modules(path: &str) -> Vec<String> {
    let mut modules: Vec<String> =
        path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if modules.len() > 1 && modules.last().is_some_and(|last| last == "mod") {
        modules.pop();
    }
    modules
}

/// Nothing in the checkout may lean on what is not in it.
fn outside(text: &str, add: Add<'_>) {
    for (index, line) in text.lines().enumerate() {
        for word in [concat!("..", "/shared"), concat!("DEVELOPERS", ".md")] {
            if line.contains(word) {
                add(Rule::Outside, index + 1, format!("names {word}, which is not in the tree"));
            }
        }
    }
}

fn layers(modules: &[String], tokens: &[Token<'_>], add: Add<'_>) {
    let own = modules[0].as_str();
    if own == "lib" {
        return;
    }
    let Some(own_level) = level(own) else {
        add(Rule::Layer, 1, format!("`{own}` is not in the map of layers"));
        return;
    };
    if own == PROGRAMS {
        return program_layers(tokens, add);
    }
    for path in source::paths(tokens, &["crate", "lanemq", "super", "self"]) {
        let target = match resolve(modules, &path) {
            Some(target) if target == own => continue,
            Some(target) => target,
            None => continue,
        };
        match level(&target) {
            Some(target_level) if target_level < own_level => {}
            Some(_) => add(Rule::Layer, path.line, format!("`{own}` may not name `{target}`")),
            None => {
                add(Rule::Layer, path.line, format!("`{target}` is not in the map of layers"));
            }
        }
    }
}

/// In a program beside the broker `crate` is the program itself.
fn program_layers(tokens: &[Token<'_>], add: Add<'_>) {
    for path in source::paths(tokens, &["lanemq"]) {
        let target = path.segments.get(1).copied().unwrap_or("lanemq");
        if !PROGRAM_MAY_NAME.contains(&target) {
            add(Rule::Layer, path.line, format!("a program may not name `{target}` of the broker"));
        }
    }
}

/// The root module that a path leads to; `None` when it stays in its own file's module.
fn resolve(modules: &[String], path: &SourcePath<'_>) -> Option<String> {
    // Where `super` counts from: the file's module, then the inline modules around the path.
    let mut place: Vec<&str> = modules.iter().map(String::as_str).collect();
    place.resize(place.len() + path.depth, "inline");
    let mut rest = path.segments.as_slice();
    if matches!(rest[0], "crate" | "lanemq") {
        place.clear();
        rest = &rest[1..];
    }
    while let Some(&first) = rest.first() {
        match first {
            "super" => {
                place.pop();
            }
            "self" => {}
            _ => break,
        }
        rest = &rest[1..];
    }
    match (place.first(), rest.first()) {
        (Some(root), _) => Some((*root).to_owned()),
        (None, Some(first)) => Some((*first).to_owned()),
        // The crate's root itself, under another name or as a whole.
        (None, None) => Some("crate".to_owned()),
    }
}

/// What only `server` may touch.
fn banned(module: &str, tokens: &[Token<'_>], add: Add<'_>) {
    let Some(own_level) = level(module) else { return };
    if own_level == SERVER_LEVEL {
        return;
    }
    for (index, token) in tokens.iter().enumerate() {
        let is_root = tokens.get(index + 1).is_some_and(|next| matches!(next.text, "::" | ";"));
        if matches!(token.text, "glommio" | "libc") && is_root {
            add(Rule::Banned, token.line, token.text.to_owned());
        }
        if own_level > SERVER_LEVEL {
            continue;
        }
        let next = |offset: usize| tokens.get(index + offset).map_or("", |token| token.text);
        let clock = token.text == "Instant" && next(1) == "::" && next(2) == "now";
        if clock || token.text == "SystemTime" {
            add(Rule::Banned, token.line, format!("a clock: {}", token.text));
        }
    }
    if own_level > SERVER_LEVEL {
        return;
    }
    for path in source::paths(tokens, &["std"]) {
        let module = path.segments.get(1).copied().unwrap_or_default();
        if matches!(module, "net" | "fs" | "thread" | "os") {
            add(Rule::Banned, path.line, format!("std::{module}"));
        }
    }
}

fn prints(module: &str, tokens: &[Token<'_>], add: Add<'_>) {
    if matches!(module, "main" | "config" | PROGRAMS) {
        return;
    }
    for pair in tokens.windows(2) {
        let name = pair[0].text;
        if matches!(name, "print" | "println" | "eprint" | "eprintln" | "dbg")
            && pair[1].text == "!"
        {
            add(Rule::Print, pair[0].line, format!("{name}!"));
        }
    }
}

fn unfinished(text: &str, tokens: &[Token<'_>], add: Add<'_>) {
    for (index, line) in text.lines().enumerate() {
        for word in ["TODO", "FIXME"] {
            if line.contains(word) {
                add(Rule::Unfinished, index + 1, word.to_owned());
            }
        }
    }
    for pair in tokens.windows(2) {
        if matches!(pair[0].text, "todo" | "unimplemented") && pair[1].text == "!" {
            add(Rule::Unfinished, pair[0].line, format!("{}!", pair[0].text));
        }
    }
}

fn unsafe_code(file: &str, tokens: &[Token<'_>], add: Add<'_>) {
    if UNSAFE_FILES.iter().any(|(listed, _)| *listed == file) {
        return;
    }
    for token in tokens.iter().filter(|token| token.text == "unsafe") {
        add(Rule::Unsafe, token.line, "`unsafe` in a file that is not listed".to_owned());
    }
}

fn sizes(file: &str, text: &str, tokens: &[Token<'_>], add: Add<'_>) {
    let (function_max, file_max) = match file.starts_with("src/") {
        true => (FUNCTION_LINES, FILE_LINES),
        false => (TEST_FUNCTION_LINES, TEST_FILE_LINES),
    };
    let lines = text.lines().count() - test_lines(tokens);
    if lines > file_max {
        add(Rule::File, lines, format!("{lines} lines without tests, {file_max} at most"));
    }
    for (at, pair) in tokens.windows(2).enumerate() {
        if pair[0].text != "fn" || pair[1].text == "(" {
            continue;
        }
        let Some(open) = body(tokens, at) else { continue };
        let end = source::block_end(tokens, open);
        let lines = tokens[end - 1].line + 1 - pair[0].line;
        if lines > function_max {
            let text = format!("`{}` has {lines} lines, {function_max} at most", pair[1].text);
            add(Rule::Function, pair[0].line, text);
        }
    }
}

/// The brace that opens the body of the function at `at`; none for a declaration.
fn body(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut brackets = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets = brackets.saturating_sub(1),
            ";" if brackets == 0 => return None,
            "{" if brackets == 0 => return Some(index),
            _ => {}
        }
    }
    None
}

/// How many lines the unit tests take.
fn test_lines(tokens: &[Token<'_>]) -> usize {
    let lines =
        |block: std::ops::Range<usize>| tokens[block.end - 1].line + 1 - tokens[block.start].line;
    source::test_blocks(tokens).into_iter().map(lines).sum()
}
