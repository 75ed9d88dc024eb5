//! The message path in the words of a test: push, pop and ack over one connection.

use serde_json::{Value, json};

use super::{Client, Response};

/// One message of a pop's answer, its payload as the text that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    pub transaction_id: String,
    pub partition: String,
    pub partition_id: String,
    pub lease_id: String,
    pub offset: u64,
    pub attempt: u64,
    pub data: String,
}

/// The calls of the message path. Each panics where the status is not the plain one.
pub trait Wire {
    /// Pushes `{"items": …}` given as its items' text, and returns the results.
    fn push_items(&mut self, items: &str) -> Vec<Value>;
    /// Pushes one message; `tx` empty: the broker mints an id.
    fn push_one(&mut self, queue: &str, partition: &str, tx: &str, payload: &str) -> Value;
    /// Pops by `target` behind `/api/v1/pop/queue/`, its names encoded already.
    fn pop(&mut self, target: &str) -> Vec<Message>;
    fn ack(&mut self, message: &Message, status: &str) -> Value;
    /// Acks with a group or an error text or whatever else stands in `more`.
    fn ack_with(&mut self, message: &Message, status: &str, more: Value) -> Value;
    fn ack_all(&mut self, messages: &[Message], group: &str) -> Vec<Value>;
    fn configure(&mut self, queue: &str, options: Value);
    fn dead_letters(&mut self, queue: &str) -> Vec<Value>;
    /// Sum of one counter over all shards.
    fn metric(&mut self, key: &str) -> u64;
}

impl Wire for Client {
    fn push_items(&mut self, items: &str) -> Vec<Value> {
        let body = format!("{{\"items\":[{items}]}}");
        let answer = self.post("/api/v1/push", body).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json().as_array().unwrap().clone()
    }

    fn push_one(&mut self, queue: &str, partition: &str, tx: &str, payload: &str) -> Value {
        let names = format!("\"queue\":{},\"partition\":{}", quoted(queue), quoted(partition));
        let item = format!("{{{names},\"transactionId\":{},\"payload\":{payload}}}", quoted(tx));
        self.push_items(&item).remove(0)
    }

    fn pop(&mut self, target: &str) -> Vec<Message> {
        let answer = self.get(&format!("/api/v1/pop/queue/{target}")).unwrap();
        messages_of(&answer)
    }

    fn ack(&mut self, message: &Message, status: &str) -> Value {
        self.ack_with(message, status, json!({}))
    }

    fn ack_with(&mut self, message: &Message, status: &str, more: Value) -> Value {
        let mut body = json!({
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "leaseId": message.lease_id,
            "status": status,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.post("/api/v1/ack", body.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().unwrap()[0].clone()
    }

    fn ack_all(&mut self, messages: &[Message], group: &str) -> Vec<Value> {
        let item = |message: &Message| {
            json!({
                "transactionId": message.transaction_id,
                "partitionId": message.partition_id,
                "leaseId": message.lease_id,
            })
        };
        let items: Vec<Value> = messages.iter().map(item).collect();
        let body = json!({"acknowledgments": items, "consumerGroup": group});
        let answer = self.post("/api/v1/ack/batch", body.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().unwrap().clone()
    }

    fn configure(&mut self, queue: &str, options: Value) {
        let body = json!({"queue": queue, "options": options});
        let answer = self.post("/api/v1/configure", body.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn dead_letters(&mut self, queue: &str) -> Vec<Value> {
        let answer = self.get(&format!("/api/v1/dlq?queue={}", encode(queue))).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = answer.json();
        let rows = body["messages"].as_array().unwrap().clone();
        assert_eq!(body["total"], rows.len(), "{body}");
        rows
    }

    fn metric(&mut self, key: &str) -> u64 {
        let body = self.get("/metrics").unwrap().json();
        body["shards"].as_array().unwrap().iter().map(|shard| shard[key].as_u64().unwrap()).sum()
    }
}

impl Message {
    /// The messages of a pop's answer, 200 or 204.
    pub fn all(answer: &Response) -> Vec<Self> {
        messages_of(answer)
    }
}

fn messages_of(answer: &Response) -> Vec<Message> {
    if answer.status == 204 {
        assert!(answer.body.is_empty(), "a 204 with a body: {}", answer.text());
        return Vec::new();
    }
    assert_eq!(answer.status, 200, "{}", answer.text());
    let raw: RawAnswer = serde_json::from_slice(&answer.body).unwrap();
    raw.messages.into_iter().map(Message::from).collect()
}

/// Only what the payload's own bytes are needed for; the rest is read as plain text.
#[derive(serde::Deserialize)]
struct RawAnswer {
    messages: Vec<RawMessage>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMessage {
    id: String,
    transaction_id: String,
    partition: String,
    partition_id: String,
    lease_id: String,
    offset: u64,
    delivery_attempt: u64,
    data: Box<serde_json::value::RawValue>,
}

impl From<RawMessage> for Message {
    fn from(raw: RawMessage) -> Self {
        Self {
            id: raw.id,
            transaction_id: raw.transaction_id,
            partition: raw.partition,
            partition_id: raw.partition_id,
            lease_id: raw.lease_id,
            offset: raw.offset,
            attempt: raw.delivery_attempt,
            data: raw.data.get().to_owned(),
        }
    }
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A name as one path segment or one query value: everything but letters and digits escaped.
pub fn encode(name: &str) -> String {
    let escape = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

/// A setting of the test run, such as the number of rounds.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}"))
    })
}
