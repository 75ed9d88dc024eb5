//! Why a partition does not deliver to a group now.

use super::json::Fields;
use super::messages::write_partition_id;
use super::query::Query;
use super::{check_names, json};
use crate::model::command::{DEFAULT_PARTITION, QUEUE_MODE};
use crate::model::error::Refusal;
use crate::model::inspect::{Deliverable, InspectRequest, Missing, Why, WhyState};

/// The three names that are asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    pub queue: String,
    pub partition: String,
    pub group: String,
}

/// Without `partition` it is the default one, without `group` the readers without a group.
pub fn decode(query: &Query<'_>) -> Result<Names, Refusal> {
    let text = |key, default: &str| {
        query.text(key).map_or_else(|| default.to_owned(), |text| text.clone().into_owned())
    };
    let names = Names {
        queue: text("queue", ""),
        partition: text("partition", DEFAULT_PARTITION),
        group: text("group", QUEUE_MODE),
    };
    check_names(&names.queue, [&names.partition, &names.group])?;
    Ok(names)
}

impl Names {
    pub fn request(&self) -> InspectRequest {
        InspectRequest::Why {
            queue: self.queue.clone(),
            partition: self.partition.clone(),
            group: self.group.clone(),
        }
    }
}

fn begin<'o>(names: &Names, state: &str, out: &'o mut Vec<u8>) -> Fields<'o> {
    let mut fields = Fields::begin(out);
    fields
        .text("queue", &names.queue)
        .text("partition", &names.partition)
        .text("group", &names.group)
        .text("state", state);
    fields
}

/// Something of the three is not there.
pub fn encode_missing(names: &Names, missing: Missing, out: &mut Vec<u8>) {
    let (state, text) = match missing {
        Missing::Queue => ("no_such_queue", "there is no such queue"),
        Missing::Partition => ("no_such_partition", "the queue has no such partition"),
        Missing::Group => ("no_such_group", "the group has not read this partition"),
    };
    begin(names, state, out).text("error", text).text("code", "not_found").end();
}

pub fn encode(names: &Names, why: &Why, out: &mut Vec<u8>) {
    let mut fields = begin(names, word(&why.state), out);
    write_partition_id(fields.key("partitionId"), why.partition_id);
    match why.next {
        Some(next) => fields.integer("next", next.0),
        None => fields.null("next"),
    };
    fields
        .integer("logStart", why.log_start.0)
        .integer("highWatermark", why.high_watermark.0)
        .integer("attempts", why.attempts)
        .integer("retryCount", why.retry_count)
        .integer("retryLimit", why.retry_limit)
        .integer("parkedPops", why.parked)
        .integer("parkedPopsOfPartition", why.parked_here);
    write_numbers(&why.state, &mut fields);
    fields.end();
}

fn word(state: &WhyState) -> &'static str {
    match state {
        WhyState::Nothing => "nothing",
        WhyState::Leased { .. } => "leased",
        WhyState::Delayed { .. } => "delayed",
        WhyState::Window { .. } => "window",
        WhyState::Conflated { .. } => "conflated",
        WhyState::Reserved { .. } => "reserved",
        WhyState::SeededAfter { .. } => "seeded_after",
        WhyState::Damaged { .. } => "damaged",
        WhyState::Retrying(_) => "retrying",
        WhyState::Ready(_) => "ready",
    }
}

/// What only this state has.
fn write_numbers(state: &WhyState, fields: &mut Fields<'_>) {
    match state {
        WhyState::Nothing => {}
        WhyState::Leased { id, first, last, since_us, until_us } => {
            json::write_uuid(fields.key("leaseId"), &id.0);
            fields
                .integer("firstOffset", first.0)
                .integer("lastOffset", last.0)
                .micros("since", *since_us)
                .micros("until", *until_us);
        }
        WhyState::Delayed { until_us } | WhyState::Window { until_us } => {
            fields.micros("until", *until_us);
        }
        WhyState::Conflated { first, newest } => {
            fields.integer("firstOffset", first.0).integer("newestOffset", newest.0);
        }
        WhyState::Reserved { first, last } => {
            fields.integer("firstOffset", first.0).integer("lastOffset", last.0);
        }
        WhyState::SeededAfter { start_us, newest_us } => {
            fields.micros("start", *start_us).micros("newestMessage", *newest_us);
        }
        WhyState::Damaged { first, last, error } => {
            fields
                .integer("firstOffset", first.0)
                .integer("lastOffset", last.0)
                .text("damage", error);
        }
        WhyState::Retrying(deliverable) | WhyState::Ready(deliverable) => {
            write_deliverable(deliverable, fields);
        }
    }
}

fn write_deliverable(deliverable: &Deliverable, fields: &mut Fields<'_>) {
    fields.integer("deliverable", deliverable.messages);
    match deliverable.place {
        Some(place) => fields.integer("readyPlace", place),
        None => fields.null("readyPlace"),
    };
    fields.integer("readyPartitions", deliverable.ready);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{LeaseId, Offset, PartitionId};
    use crate::model::error::ErrorCode;
    use crate::proto::query::query;

    fn shown(state: WhyState) -> serde_json::Value {
        let why = Why {
            partition_id: PartitionId(7),
            state,
            next: Some(Offset(3)),
            log_start: Offset(1),
            high_watermark: Offset(9),
            attempts: 2,
            retry_count: 1,
            retry_limit: 3,
            parked: 4,
            parked_here: 5,
        };
        let mut out = Vec::new();
        encode(&decode(&query("queue=q&group=g")).unwrap(), &why, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn every_state_has_its_word_and_its_numbers() {
        let v = shown(WhyState::Nothing);
        let keys: Vec<&str> = v.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.len(), 13, "{keys:?}");
        assert_eq!((&v["partition"], &v["highWatermark"]), (&"Default".into(), &9.into()));
        let (first, last) = (Offset(3), Offset(4));
        let lease =
            WhyState::Leased { id: LeaseId([1; 16]), first, last, since_us: 0, until_us: 1 };
        let v = shown(lease);
        assert_eq!((&v["state"], &v["lastOffset"]), (&"leased".into(), &4.into()));
        assert_eq!(v["until"], "1970-01-01T00:00:00.000001Z");
        assert_eq!(shown(WhyState::Window { until_us: 0 })["state"], "window");
        assert_eq!(shown(WhyState::Delayed { until_us: 0 })["state"], "delayed");
        assert_eq!(shown(WhyState::Reserved { first, last })["firstOffset"], 3);
        let v = shown(WhyState::SeededAfter { start_us: 5, newest_us: 4 });
        assert_eq!(v["newestMessage"], "1970-01-01T00:00:00.000004Z");
        let v = shown(WhyState::Damaged { first, last, error: "bad sum".into() });
        assert_eq!((&v["state"], &v["damage"]), (&"damaged".into(), &"bad sum".into()));
        let deliverable = Deliverable { messages: 6, place: None, ready: 8 };
        let v = shown(WhyState::Retrying(deliverable));
        assert_eq!((&v["readyPlace"], &v["readyPartitions"]), (&().into(), &8.into()));
        assert_eq!(shown(WhyState::Ready(deliverable))["state"], "ready");
    }

    #[test]
    fn what_is_missing_has_the_same_shape() {
        assert_eq!(decode(&query("")).unwrap_err().code, ErrorCode::BadRequest);
        let names = decode(&query("queue=q&partition=p")).unwrap();
        let mut out = Vec::new();
        encode_missing(&names, Missing::Group, &mut out);
        let want = concat!(
            r#"{"queue":"q","partition":"p","group":"__QUEUE_MODE__","state":"no_such_group","#,
            r#""error":"the group has not read this partition","code":"not_found"}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
