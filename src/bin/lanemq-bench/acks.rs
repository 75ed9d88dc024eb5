//! The ack of what one pop brought: every message by its id, as the published clients do it.

use std::net::SocketAddr;

use crate::http;

pub struct Acks {
    /// Pops bring one message, and the ack for one is used.
    single: bool,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Acks {
    pub fn new(host: SocketAddr, single: bool) -> Self {
        let path = if single { "/api/v1/ack" } else { "/api/v1/ack/batch" };
        let head = http::post_head(host, path, "application/json");
        Self { single, head, body: Vec::new() }
    }

    pub fn begin(&mut self) {
        self.body.clear();
        if !self.single {
            self.body.extend_from_slice(b"{\"acknowledgments\":[");
        }
    }

    pub fn add(&mut self, transaction_id: &[u8], partition_id: u64, lease: &[u8]) {
        let body = &mut self.body;
        if body.last() == Some(&b'}') {
            body.push(b',');
        }
        body.extend_from_slice(b"{\"transactionId\":\"");
        body.extend_from_slice(transaction_id);
        body.extend_from_slice(b"\",\"partitionId\":\"");
        http::write_number(body, partition_id);
        body.extend_from_slice(b"\",\"leaseId\":\"");
        body.extend_from_slice(lease);
        body.extend_from_slice(b"\"}");
    }

    /// Appends the request.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.single {
            self.body.extend_from_slice(b"]}");
        }
        http::write_post(out, &self.head, &self.body);
    }
}
