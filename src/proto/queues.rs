//! Deleting a queue.

use super::json::Fields;

/// The answer to a deletion. A queue that was not there is no error: clients delete before they
/// create.
pub fn encode_deleted(queue: &str, existed: bool, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields.boolean("deleted", existed).boolean("existed", existed).text("queue", queue);
    if !existed {
        fields.text("message", "there was no such queue");
    }
    fields.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_answers() {
        let mut out = Vec::new();
        encode_deleted("a/b", true, &mut out);
        assert_eq!(out, br#"{"deleted":true,"existed":true,"queue":"a/b"}"#);
        out.clear();
        encode_deleted("x", false, &mut out);
        let want =
            br#"{"deleted":false,"existed":false,"queue":"x","message":"there was no such queue"}"#;
        assert_eq!(out, want);
    }
}
