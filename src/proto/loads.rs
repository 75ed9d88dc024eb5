//! What waits in partitions: the depth of a queue, the sizes of its partitions, the partitions
//! with the most pending.

use super::json::{self, Fields};
use super::messages::write_partition_id;
use super::query::Query;
use crate::base::limits;
use crate::model::inspect::{LoadOrder, LoadQuery, Loads, Page, PartitionLoad};

/// `limit` and `offset` of a listing whose rows carry names.
pub(super) fn page(query: &Query<'_>, default: usize) -> Page {
    Page {
        limit: query.page("limit", default, 1..=limits::PARTITIONS_LIMIT_MAX),
        offset: query.page("offset", 0, 0..=limits::NAMED_OFFSET_MAX),
    }
}

/// The depth of a queue, for one group or for the slowest reader.
pub fn decode_depth(queue: &str, query: &Query<'_>) -> LoadQuery {
    LoadQuery {
        queue: Some(queue.to_owned()),
        group: query.text("group").map(|group| group.clone().into_owned()),
        order: LoadOrder::Pending,
        page: page(query, limits::PARTITIONS_LIMIT_MAX),
    }
}

pub fn decode_sizes(queue: &str, query: &Query<'_>) -> LoadQuery {
    LoadQuery { group: None, order: LoadOrder::Name, ..decode_depth(queue, query) }
}

pub fn decode_partitions(query: &Query<'_>) -> LoadQuery {
    LoadQuery {
        queue: query.text("queue").map(|queue| queue.clone().into_owned()),
        group: None,
        order: LoadOrder::Pending,
        page: page(query, limits::PARTITIONS_LIMIT_DEFAULT),
    }
}

/// Writes rows into an array or object that is open, as long as the answer stays within its
/// limit. Returns how many.
pub(super) fn write_bounded<T>(
    out: &mut Vec<u8>,
    rows: &[T],
    mut write: impl FnMut(&T, &mut Vec<u8>),
) -> usize {
    let start = out.len();
    for (at, row) in rows.iter().enumerate() {
        let before = out.len();
        if at > 0 {
            out.push(b',');
        }
        write(row, out);
        // Room for what comes behind the rows.
        if out.len() > limits::LISTING_BYTES_MAX - 1_024 && before > start {
            out.truncate(before);
            return at;
        }
    }
    rows.len()
}

/// Writes the depth. Counts are over all partitions, rows those with the most pending.
pub fn encode_depth(query: &LoadQuery, loads: &Loads, out: &mut Vec<u8>) {
    let sums = &loads.sums;
    // A conflating group handles one message a partition, however many wait.
    let effective = |messages, partitions| if sums.conflation { partitions } else { messages };
    let mut fields = Fields::begin(out);
    fields.text("queue", query.queue.as_deref().unwrap_or_default());
    match &query.group {
        Some(group) => fields.text("group", group),
        None => fields.null("group"),
    };
    fields
        .integer("pending", sums.pending)
        .integer("processing", sums.processing)
        .integer("ready", sums.pending - sums.processing)
        .integer("partitionsPending", sums.partitions_pending)
        .integer("partitionsReady", sums.partitions_ready)
        .boolean("conflation", sums.conflation)
        .integer("effectivePending", effective(sums.pending, sums.partitions_pending))
        .integer(
            "effectiveReady",
            effective(sums.pending - sums.processing, sums.partitions_ready),
        );
    let out = fields.key("partitions");
    out.push(b'[');
    let shown = write_bounded(out, &loads.rows, |row, out| {
        Fields::begin(out)
            .text("partition", &row.partition)
            .integer("pending", row.pending)
            .integer("processing", row.processing)
            .integer("ready", row.pending - row.processing)
            .end();
    });
    out.push(b']');
    if is_cut(loads, shown) {
        fields.boolean("partitionsTruncated", true);
    }
    fields.end();
}

/// There are more rows than are shown: beyond this page, or beyond what fits.
fn is_cut(loads: &Loads, shown: usize) -> bool {
    loads.truncated || shown < loads.rows.len()
}

/// Writes retained bytes by the name of the partition.
pub fn encode_sizes(query: &LoadQuery, loads: &Loads, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields.text("queue", query.queue.as_deref().unwrap_or_default());
    let out = fields.key("partitions");
    out.push(b'{');
    let shown = write_bounded(out, &loads.rows, |row, out| {
        json::write_string(out, &row.partition);
        out.push(b':');
        json::write_integer(out, row.retained_bytes);
    });
    out.push(b'}');
    if is_cut(loads, shown) {
        fields.boolean("truncated", true);
    }
    fields.end();
}

/// Writes the partitions with the most pending.
pub fn encode_partitions(loads: &Loads, now_us: i64, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    let out = fields.key("partitions");
    out.push(b'[');
    let shown = write_bounded(out, &loads.rows, |row, out| write_partition(row, now_us, out));
    out.push(b']');
    fields.integer("walked", loads.walked).boolean("truncated", is_cut(loads, shown)).end();
}

fn write_partition(row: &PartitionLoad, now_us: i64, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields.text("queue", &row.queue).text("partition", &row.partition);
    write_partition_id(fields.key("id"), row.id);
    fields.integer("pending", row.pending).integer("processing", row.processing);
    match row.oldest_us {
        Some(us) => fields.integer("lagSeconds", seconds_since(us, now_us)),
        None => fields.null("lagSeconds"),
    };
    fields.end();
}

/// Whole seconds; a stamp ahead of the clock is none.
pub(super) fn seconds_since(us: i64, now_us: i64) -> u64 {
    now_us.saturating_sub(us).max(0).cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::PartitionId;
    use crate::model::inspect::LoadSums;
    use crate::proto::query::query;

    fn loads(names: &[&str]) -> Loads {
        let row = |name: &&str| PartitionLoad {
            queue: "q".into(),
            partition: (*name).into(),
            id: PartitionId(3),
            pending: 5,
            processing: 2,
            oldest_us: Some(1_000_000),
            retained_bytes: 77,
        };
        let sums = LoadSums {
            pending: 5,
            processing: 2,
            partitions_pending: 1,
            partitions_ready: 1,
            conflation: false,
        };
        Loads { sums, rows: names.iter().map(row).collect(), walked: 9, truncated: false }
    }

    #[test]
    fn the_three_answers_have_the_wires_keys() {
        let depth = decode_depth("q", &query("group=g"));
        let mut out = Vec::new();
        encode_depth(&depth, &loads(&["p"]), &mut out);
        let want = concat!(
            r#"{"queue":"q","group":"g","pending":5,"processing":2,"ready":3,"#,
            r#""partitionsPending":1,"partitionsReady":1,"conflation":false,"#,
            r#""effectivePending":5,"effectiveReady":3,"partitions":[{"partition":"p","#,
            r#""pending":5,"processing":2,"ready":3}]}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode_sizes(&decode_sizes("q", &query("")), &loads(&["a\"", "b"]), &mut out);
        let want = r#"{"queue":"q","partitions":{"a\"":77,"b":77}}"#;
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode_partitions(&loads(&["p"]), 3_999_999, &mut out);
        let want = concat!(
            r#"{"partitions":[{"queue":"q","partition":"p","id":"3","pending":5,"processing":2,"#,
            r#""lagSeconds":2}],"walked":9,"truncated":false}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
    }

    #[test]
    fn an_answer_stays_within_its_limit_and_says_that_it_was_cut() {
        let long = "x".repeat(400);
        let names: Vec<&str> = vec![&long; 5_000];
        let mut out = Vec::new();
        encode_partitions(&loads(&names), 0, &mut out);
        assert!(out.len() <= limits::LISTING_BYTES_MAX && out.len() > 1_000_000, "{}", out.len());
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(v["truncated"], true);
        out.clear();
        encode_depth(&decode_depth("q", &query("")), &loads(&names), &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&v["partitionsTruncated"], &v["group"]), (&true.into(), &().into()));
    }

    #[test]
    fn limits_are_clamped() {
        let limit = |text| decode_partitions(&query(text)).page.limit;
        assert_eq!((limit(""), limit("limit=0"), limit("limit=99999")), (610, 1, 5_000));
        assert_eq!(decode_partitions(&query("queue=")).queue, None);
    }
}
