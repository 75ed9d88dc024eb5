//! As much HTTP/1.1 as the load needs: one request at a time, answers with a length.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use memchr::memmem;

use crate::wire::{Fault, excerpt, read_more};

/// An answer to a request of ours is far below this; more is not HTTP.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The length of the answer that `bytes` begin with, once it is all there.
pub fn answer_len(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(head_len) = head_len(bytes) else {
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(Fault::new(format!("not an HTTP answer: {}", excerpt(bytes))));
        }
        return Ok(None);
    };
    let total = head_len + body_len(&bytes[..head_len])?;
    Ok((bytes.len() >= total).then_some(total))
}

fn head_len(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// From the headers. An answer without a length has no body, as a 204.
fn body_len(head: &[u8]) -> Result<usize, Fault> {
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        if !line[..colon].eq_ignore_ascii_case(b"content-length") {
            continue;
        }
        let value = String::from_utf8_lossy(&line[colon + 1..]);
        return value
            .trim()
            .parse()
            .map_err(|error| Fault::new(format!("content-length {value:?}: {error}")));
    }
    if status(head) == Some(204) {
        return Ok(0);
    }
    Err(Fault::new(format!("an answer without a length: {}", excerpt(head))))
}

fn status(head: &[u8]) -> Option<u16> {
    let digits = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The body of a whole answer; `None` when it has the status of an empty one, 204.
pub fn body(answer: &[u8], wanted: u16) -> Result<Option<&[u8]>, Fault> {
    let refused = || Fault::new(format!("not a {wanted}: {}", excerpt(answer)));
    match status(answer) {
        Some(204) => Ok(None),
        Some(status) if status == wanted => {
            Ok(Some(&answer[head_len(answer).ok_or_else(refused)?..]))
        }
        _ => Err(refused()),
    }
}

/// A request's head up to the value of its content length.
pub fn post_head(host: SocketAddr, path: &str, content_type: &str) -> Vec<u8> {
    let lines = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: "
    );
    lines.into_bytes()
}

pub fn write_post(out: &mut Vec<u8>, head: &[u8], body: &[u8]) {
    out.extend_from_slice(head);
    write_number(out, body.len() as u64);
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

pub fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// One GET on a connection of its own. Not for what is measured.
pub fn get(address: SocketAddr, path: &str) -> Result<Vec<u8>, Fault> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    exchange(&mut stream, request.as_bytes(), 200)
}

/// One request on a blocking connection, and the body of its answer.
pub fn exchange(stream: &mut TcpStream, request: &[u8], wanted: u16) -> Result<Vec<u8>, Fault> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    loop {
        read_more(stream, &mut answer)?;
        if let Some(len) = answer_len(&answer)? {
            answer.truncate(len);
            let body = body(&answer, wanted)?;
            return Ok(body.unwrap_or_default().to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_only_with_its_last_byte() {
        let answer = b"HTTP/1.1 201 Created\r\ncontent-LENGTH:  5\r\n\r\nhello";
        for end in 0..answer.len() {
            assert_eq!(answer_len(&answer[..end]).unwrap(), None);
        }
        assert_eq!(answer_len(answer).unwrap(), Some(answer.len()));
        assert_eq!(body(answer, 201).unwrap(), Some(&b"hello"[..]));
        assert!(body(answer, 200).is_err());
        let empty = b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n";
        assert_eq!(answer_len(empty).unwrap(), Some(empty.len()));
        assert_eq!(body(empty, 200).unwrap(), None);
        assert!(answer_len(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(answer_len(&[b'x'; 20_000]).is_err());
    }
}
