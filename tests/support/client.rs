//! A blocking HTTP/1.1 client over one kept-alive connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Above the broker's longest long poll (60 s), so that a read that runs into it is a hang.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// One request of a pipeline.
pub struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub body: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    pub fn get(target: &'a str) -> Self {
        Self { method: "GET", target, body: None }
    }

    pub fn post(target: &'a str, body: &'a [u8]) -> Self {
        Self { method: "POST", target, body: Some(body) }
    }

    fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(
            format!("{} {} HTTP/1.1\r\nHost: lanemq\r\n", self.method, self.target).as_bytes(),
        );
        if let Some(body) = self.body {
            let head =
                format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
            out.extend_from_slice(head.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body.unwrap_or_default());
    }
}

/// One answer. Header names are in lower case.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; panics with the body when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in a {} body: {}", self.status, self.text()))
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// Bytes read from the socket that no response has taken yet.
    pending: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream, pending: Vec::new() })
    }

    pub fn get(&mut self, target: &str) -> io::Result<Response> {
        self.request(&Request::get(target))
    }

    pub fn post(&mut self, target: &str, body: impl AsRef<[u8]>) -> io::Result<Response> {
        self.request(&Request::post(target, body.as_ref()))
    }

    pub fn delete(&mut self, target: &str) -> io::Result<Response> {
        self.request(&Request { method: "DELETE", target, body: None })
    }

    /// Sends one request and reads its final answer; interim (1xx) answers are passed over.
    pub fn request(&mut self, request: &Request<'_>) -> io::Result<Response> {
        let mut bytes = Vec::new();
        request.write_to(&mut bytes);
        self.send_raw(&bytes)?;
        self.read_final(request.method == "HEAD")
    }

    /// Sends all requests in one write, then reads as many answers, in order.
    pub fn pipeline(&mut self, requests: &[Request<'_>]) -> io::Result<Vec<Response>> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.write_to(&mut bytes));
        self.send_raw(&bytes)?;
        requests.iter().map(|request| self.read_final(request.method == "HEAD")).collect()
    }

    /// Sends bytes as they are, for requests that no well-behaved client makes.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the sending half: the broker reads an end of file.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    pub fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(limit))
    }

    /// Whether the broker has closed the connection: true at an end of file or a reset, false
    /// when nothing came within `limit`. Panics if there are bytes instead.
    pub fn closed_within(&mut self, limit: Duration) -> io::Result<bool> {
        assert!(self.pending.is_empty(), "unread bytes: {}", self.pending.escape_ascii());
        self.stream.set_read_timeout(Some(limit))?;
        let mut byte = [0u8; 256];
        let outcome = self.stream.read(&mut byte);
        self.stream.set_read_timeout(Some(READ_TIMEOUT))?;
        match outcome {
            Ok(0) => Ok(true),
            Ok(n) => panic!("bytes instead of a close: {}", byte[..n].escape_ascii()),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(false),
                ErrorKind::ConnectionReset => Ok(true),
                _ => Err(error),
            },
        }
    }

    fn read_final(&mut self, head_only: bool) -> io::Result<Response> {
        loop {
            let response = self.read_response(head_only)?;
            if response.status >= 200 {
                return Ok(response);
            }
        }
    }

    /// Reads one answer, an interim one too. `head_only`: it answers HEAD, so no body follows.
    pub fn read_response(&mut self, head_only: bool) -> io::Result<Response> {
        let end = self.read_until_blank_line()?;
        let head: Vec<u8> = self.pending.drain(..end).collect();
        let (status, headers) = parse_head(&head)?;
        let mut response = Response { status, headers, body: Vec::new() };
        if head_only || status < 200 || status == 204 || status == 304 {
            return Ok(response);
        }
        let length = response.header("content-length").map(str::to_owned);
        response.body = match (response.header("transfer-encoding"), length) {
            (Some(_), Some(_)) => return Err(malformed("two framings", &head)),
            (Some("chunked"), None) => self.read_chunked()?,
            (None, Some(length)) => {
                let length = length.parse().map_err(|error| malformed(error, &head))?;
                self.take(length)?
            }
            _ => return Err(malformed("no framing", &head)),
        };
        Ok(response)
    }

    fn read_until_blank_line(&mut self) -> io::Result<usize> {
        loop {
            if let Some(at) = self.pending.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(at + 4);
            }
            self.fill()?;
        }
    }

    fn read_chunked(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.take_line()?;
            let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
            let size = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| usize::from_str_radix(digits, 16).ok())
                .ok_or_else(|| malformed("chunk size", &line))?;
            if size == 0 {
                while !self.take_line()?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.take(size)?);
            let end = self.take_line()?;
            if !end.is_empty() {
                return Err(malformed("end of a chunk", &end));
            }
        }
    }

    fn take_line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.pending.windows(2).position(|two| two == b"\r\n") {
                let mut line: Vec<u8> = self.pending.drain(..at + 2).collect();
                line.truncate(at);
                return Ok(line);
            }
            self.fill()?;
        }
    }

    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.pending.len() < count {
            self.fill()?;
        }
        Ok(self.pending.drain(..count).collect())
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; 64 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.pending.extend_from_slice(&buffer[..count]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

type Headers = Vec<(String, String)>;

fn parse_head(head: &[u8]) -> io::Result<(u16, Headers)> {
    let text = std::str::from_utf8(head).map_err(|error| malformed(error, head))?;
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| malformed("status line", head))?;
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').ok_or_else(|| malformed("header", head))?;
            Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect::<io::Result<_>>()?;
    Ok((status, headers))
}

fn malformed(what: impl std::fmt::Display, bytes: &[u8]) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{what}: {}", bytes.escape_ascii()))
}
