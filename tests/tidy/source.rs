//! Just enough of Rust's grammar: text without comments and literals, tokens, paths.

/// Blanks out comments, strings and characters; line breaks and all other bytes keep their place.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if starts_word(bytes, at) => raw_string_end(bytes, at, at + 1),
            b'b' if starts_word(bytes, at) && bytes.get(at + 1) == Some(&b'r') => {
                raw_string_end(bytes, at, at + 2)
            }
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn starts_word(bytes: &[u8], at: usize) -> bool {
    at == 0 || !is_word(bytes[at - 1])
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// Block comments nest.
fn comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"…"`, `r#"…"#` and so on; `start` itself when it is none (an identifier, or `r#type`).
fn raw_string_end(bytes: &[u8], start: usize, after_r: usize) -> usize {
    let hashes = bytes[after_r..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(after_r + hashes) != Some(&b'"') {
        return start;
    }
    let mut at = after_r + hashes + 1;
    while at < bytes.len() {
        let closing = bytes[at] == b'"'
            && bytes[at + 1..].iter().take(hashes).filter(|&&byte| byte == b'#').count() == hashes;
        if closing {
            return at + 1 + hashes;
        }
        at += 1;
    }
    at
}

/// A character; `start` itself when the quote begins a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        let rest = bytes.get(start + 3..).unwrap_or_default();
        let length = rest.iter().position(|&byte| byte == b'\'').unwrap_or(rest.len());
        return (start + 3 + length + 1).min(bytes.len());
    }
    // One character of up to four bytes, then the closing quote.
    for length in 1..=4 {
        if bytes.get(start + 1 + length) == Some(&b'\'') {
            let text = std::str::from_utf8(&bytes[start + 1..=start + length]);
            if text.is_ok_and(|text| text.chars().count() == 1) {
                return start + length + 2;
            }
        }
    }
    start
}

/// A word, `::`, or any other single character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

/// The tokens of text that `code_only` returned; lines count from 1.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let (mut at, mut line, mut tokens) = (0, 1, Vec::new());
    while at < bytes.len() {
        let length = match bytes[at] {
            byte if is_word(byte) => bytes[at..].iter().take_while(|&&byte| is_word(byte)).count(),
            b':' if bytes.get(at + 1) == Some(&b':') => 2,
            _ => 1,
        };
        if bytes[at] == b'\n' {
            line += 1;
        }
        if !bytes[at].is_ascii_whitespace() {
            tokens.push(Token { text: &code[at..at + length], line });
        }
        at += length;
    }
    tokens
}

/// Where `#[cfg(test)] mod name { … }` begins and ends, as indices of tokens.
pub fn test_blocks(tokens: &[Token<'_>]) -> Vec<std::ops::Range<usize>> {
    const HEAD: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut blocks: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..tokens.len() {
        let here = &tokens[at..];
        let head = here.iter().zip(HEAD).filter(|(token, text)| token.text == *text).count();
        let inside = blocks.last().is_some_and(|last| last.contains(&at));
        if head == HEAD.len() && here.get(9).is_some_and(|token| token.text == "{") && !inside {
            blocks.push(at..block_end(tokens, at + 9));
        }
    }
    blocks
}

/// The tokens outside of the test blocks.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let blocks = test_blocks(tokens);
    let product = |at: &usize| !blocks.iter().any(|block| block.contains(at));
    (0..tokens.len()).filter(product).map(|at| tokens[at]).collect()
}

/// The index after the brace that closes the one at `open`.
pub fn block_end(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// One path in the source, imports in braces taken apart.
#[derive(Debug)]
pub struct SourcePath<'a> {
    pub segments: Vec<&'a str>,
    pub line: usize,
    /// How many inline `mod name { … }` it stands in: a `super` leaves those first.
    pub depth: usize,
}

/// Every path that begins with one of `roots`.
pub fn paths<'a>(tokens: &[Token<'a>], roots: &[&str]) -> Vec<SourcePath<'a>> {
    let mut found = Vec::new();
    let mut inline_modules: Vec<usize> = Vec::new();
    for at in 0..tokens.len() {
        inline_modules.retain(|&end| at < end);
        let text = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text);
        if text(0) == "mod" && text(2) == "{" {
            inline_modules.push(block_end(tokens, at + 2));
        }
        let begins =
            at == 0 || tokens[at - 1].text != "::" || at == 1 || !is_path_end(tokens[at - 2].text);
        let alias = text(0) == "crate" && text(1) == "as";
        if roots.contains(&text(0)) && begins && (text(1) == "::" || alias) {
            let mut segments = Vec::new();
            collect(tokens, at, &mut segments, &mut |segments, line| {
                let (segments, depth) = (segments.to_vec(), inline_modules.len());
                found.push(SourcePath { segments, line, depth });
            });
        }
    }
    found
}

/// Whether a `::` after this token continues a path (`a::b`) rather than beginning one (`::b`).
fn is_path_end(text: &str) -> bool {
    const KEYWORDS: [&str; 6] = ["use", "return", "in", "as", "dyn", "impl"];
    text == ">" || (text.bytes().all(is_word) && !KEYWORDS.contains(&text))
}

/// Walks the use tree (or plain path) at `at`; returns the index after it.
fn collect<'a>(
    tokens: &[Token<'a>],
    at: usize,
    prefix: &mut Vec<&'a str>,
    emit: &mut dyn FnMut(&[&'a str], usize),
) -> usize {
    let Some(token) = tokens.get(at) else { return at };
    if token.text == "{" {
        let end = block_end(tokens, at);
        let mut next = at + 1;
        while next + 1 < end {
            next = collect(tokens, next, prefix, emit).max(next + 1);
        }
        return end;
    }
    prefix.push(token.text);
    let follows = tokens.get(at + 1).is_some_and(|next| next.text == "::");
    // `a::<T>` and `a::*` end the path as far as its modules go.
    let deeper = tokens
        .get(at + 2)
        .is_some_and(|next| next.text == "{" || next.text == "*" || next.text.bytes().all(is_word));
    let end = if follows && deeper {
        collect(tokens, at + 2, prefix, emit)
    } else {
        emit(prefix, token.line);
        at + 1
    };
    prefix.pop();
    end
}
