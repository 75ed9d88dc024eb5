//! The judge: reads a history and what was left at its end, and names everything that no correct
//! broker can have done. It knows the wire's contract and nothing of the broker.
//!
//! A client knows a request's two ends, not the moment in between at which it took effect. So a
//! lease surely holds from the moment its pop was answered, up to its length counted from when
//! the pop was sent, or to the moment an ack that ends it was sent; a request without an answer
//! may have happened or not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::cursor::{Cursor, Fault, Lost};
use super::event::{
    Answer, Claim, Event, Micros, Outcome, Pop, Product, Remains, Settle, Span, Status, Transaction,
};

/// What a run was made of.
pub struct History {
    pub groups: usize,
    pub partitions: usize,
    pub retry_limit: u64,
    /// The group whose acks are transactions with products.
    pub relay: Option<usize>,
    pub events: Vec<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// An answered push is not at its offset, is there twice, or something nobody pushed is.
    Pushed,
    /// Two leases of one partition and group at once.
    Exclusive,
    /// A settled message came back.
    Returned,
    /// Deliveries do not go forward, or leave something out.
    Order,
    Attempt,
    /// An ack is refused under a live lease, taken under a lapsed one, or answered wrongly.
    Verdict,
    Extension,
    /// A transaction happened in part, or without being answered as committed.
    Transaction,
    /// Pushed is not acked and dead lettered at the end.
    Account,
}

pub struct Violation {
    pub rule: Rule,
    pub text: String,
    /// The events it is about, in order.
    pub events: Vec<Event>,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:?}: {}", self.rule, self.text)?;
        self.events.iter().try_for_each(|event| writeln!(out, "    {event}"))
    }
}

/// How far the moment a broker that is gone may still act on what its client has given up.
const LINGER: Micros = 2_000_000;
/// A restart measures leases by the wall clock.
const WALL_SLACK: Micros = 50_000;

/// Judges a history. The account of each group comes with the violations: acknowledged, dead
/// lettered, perhaps delivered to nobody (a pop that commits and lost its answer).
pub fn check(history: &History, remains: &Remains) -> (Vec<Violation>, Vec<[u64; 3]>) {
    let mut judge = Judge::new(history, remains);
    judge.pushes();
    judge.transactions();
    for group in 0..history.groups {
        judge.group(group);
    }
    let order = |event: &Event| (event.span().ended, event.span().sent);
    for violation in &mut judge.found {
        violation.events.sort_by_key(order);
    }
    (judge.found, judge.accounts)
}

/// One delivery with what its pop knows.
#[derive(Clone, Copy)]
struct Delivery<'a> {
    pop: &'a Pop,
    claim: &'a Claim,
}

struct Judge<'a> {
    history: &'a History,
    remains: &'a Remains,
    /// By pop and partition, in the order they were sent.
    settles: HashMap<(u64, u32), Vec<&'a Settle>>,
    /// By pop: until when its leases surely, and perhaps, hold.
    held: HashMap<u64, (Micros, Micros)>,
    /// What is known at the end of every transaction.
    happened: HashMap<u64, bool>,
    found: Vec<Violation>,
    accounts: Vec<[u64; 3]>,
}

impl<'a> Judge<'a> {
    fn new(history: &'a History, remains: &'a Remains) -> Self {
        let mut settles: HashMap<_, Vec<&Settle>> = HashMap::new();
        for event in &history.events {
            if let Event::Settle(settle) = event {
                settles.entry((settle.pop, settle.partition)).or_default().push(settle);
            }
        }
        settles.values_mut().for_each(|list| list.sort_by_key(|settle| settle.span.sent));
        let mut judge = Self {
            history,
            remains,
            settles,
            held: HashMap::new(),
            happened: HashMap::new(),
            found: Vec::new(),
            accounts: Vec::new(),
        };
        judge.leases();
        judge
    }

    fn report(&mut self, rule: Rule, text: String, events: Vec<Event>) {
        self.found.push(Violation { rule, text, events });
    }

    /// Lengths of the leases, with their extensions.
    fn leases(&mut self) {
        let kill = |event: &Event| match event {
            Event::Kill(span) => Some(*span),
            _ => None,
        };
        let kills: Vec<Span> = self.history.events.iter().filter_map(kill).collect();
        for event in &self.history.events {
            if let Event::Pop(pop) = event {
                let until = pop.span.ended + pop.length;
                let over = |kill: &Span| kill.sent < until && kill.ended > pop.span.sent;
                let slack = if kills.iter().any(over) { WALL_SLACK } else { 0 };
                let sure = (pop.span.sent + pop.length).saturating_sub(slack);
                self.held.insert(pop.number, (sure, pop.span.ended + pop.length));
            }
        }
        let mut first_acks: HashMap<u64, Micros> = HashMap::new();
        for ((pop, _), list) in &self.settles {
            let first = first_acks.entry(*pop).or_insert(Micros::MAX);
            *first = list[0].span.sent.min(*first);
        }
        let claims: HashMap<u64, u64> = self.pops().map(|p| (p.number, claimed(p))).collect();
        for event in &self.history.events {
            let Event::Extend(extend) = event else { continue };
            let settled = first_acks.get(&extend.pop).copied();
            let held = self.held.get_mut(&extend.pop).expect("a pop is extended that was sent");
            let (sure, perhaps) = *held;
            if extend.renewed != Some(0) {
                held.1 = perhaps.max(extend.span.ended + extend.length);
            }
            // Settled partitions are no longer extended, so only extensions before any ack count.
            let whole = settled.is_none_or(|sent| sent > extend.span.ended);
            let claims = claims.get(&extend.pop).copied().unwrap_or(0);
            if whole && extend.renewed == Some(claims) {
                held.0 = sure.max(extend.span.sent + extend.length);
            }
            let wrong = match extend.renewed {
                Some(renewed) if whole && extend.span.ended < sure => renewed != claims,
                Some(renewed) => {
                    renewed > claims || renewed > 0 && extend.span.sent > perhaps + WALL_SLACK
                }
                None => false,
            };
            if wrong {
                let text = format!("pop {} holds {claims} partitions", extend.pop);
                let pop = self.pops().find(|pop| pop.number == extend.pop).cloned();
                let events = pop.map(Event::Pop).into_iter().chain([event.clone()]).collect();
                self.report(Rule::Extension, text, events);
            }
        }
    }

    fn pops(&self) -> impl Iterator<Item = &'a Pop> {
        self.history.events.iter().filter_map(|event| match event {
            Event::Pop(pop) => Some(pop),
            _ => None,
        })
    }

    fn pushes(&mut self) {
        let mut sent: HashMap<(u32, &str), (usize, Option<u64>)> = HashMap::new();
        let mut wrong = Vec::new();
        let events = &self.history.events;
        for (at, event) in events.iter().enumerate() {
            let Event::Push(push) = event else { continue };
            for item in &push.items {
                let key = (item.partition, item.id.as_str());
                let known = sent.entry(key).or_insert((at, None));
                let Some((queued, offset)) = item.answer else { continue };
                if !queued && !push.again || known.1.is_some_and(|place| place != offset) {
                    wrong.push((format!("{item:?} is another answer than before"), at));
                }
                *known = (at, Some(offset));
            }
        }
        for (&(partition, id), &(at, offset)) in &sent {
            let Some(offset) = offset else { continue };
            let log = &self.remains.log[partition as usize];
            if log.get(offset as usize).is_none_or(|there| there != id) {
                wrong.push((format!("{id} is not at offset {offset} of p{partition}"), at));
            }
        }
        for (partition, log) in self.remains.log.iter().enumerate() {
            let mut seen = HashSet::new();
            for id in log {
                match sent.get(&(partition as u32, id.as_str())) {
                    None => wrong.push((format!("nobody pushed {id} to p{partition}"), usize::MAX)),
                    Some((at, _)) if !seen.insert(id) => {
                        wrong.push((format!("{id} is twice in p{partition}"), *at));
                    }
                    Some(_) => {}
                }
            }
        }
        self.push_parts(&mut wrong);
        for (text, at) in wrong {
            let events = events.get(at).cloned().into_iter().collect();
            self.report(Rule::Pushed, text, events);
        }
    }

    /// One partition's part of a push without an answer is there whole or not at all.
    fn push_parts(&self, wrong: &mut Vec<(String, usize)>) {
        let logs = self.remains.log.iter();
        let logs: Vec<HashSet<&str>> =
            logs.map(|log| log.iter().map(String::as_str).collect()).collect();
        for (at, event) in self.history.events.iter().enumerate() {
            let Event::Push(push) = event else { continue };
            let mut parts: BTreeMap<u32, HashSet<bool>> = BTreeMap::new();
            for item in &push.items {
                let there = logs[item.partition as usize].contains(item.id.as_str());
                parts.entry(item.partition).or_default().insert(there);
            }
            for (partition, _) in parts.iter().filter(|(_, there)| there.len() > 1) {
                wrong.push((format!("a part of an append is in p{partition}"), at));
            }
        }
    }

    /// All products of a committed transaction, none of one that was rolled back; the unanswered
    /// are thereby known to have happened or not.
    fn transactions(&mut self) {
        let mut there: HashMap<&str, (u64, u64)> = HashMap::new();
        for (id, offset) in &self.remains.products {
            there.entry(id).or_insert((0, *offset)).0 += 1;
        }
        let mut known: HashSet<&str> = HashSet::new();
        let mut sources: HashMap<(u32, u64), (u64, &Transaction)> = HashMap::new();
        let mut wrong: Vec<(String, Vec<&Transaction>)> = Vec::new();
        for event in &self.history.events {
            let Event::Transaction(transaction) = event else { continue };
            let times = |p: &Product| there.get(p.id.as_str()).map_or(0, |(times, _)| *times);
            let found = transaction.results.iter().filter(|p| times(p) > 0).count();
            let doubled = transaction.results.iter().any(|p| times(p) > 1);
            let moved = |p: &Product| match (p.offset, there.get(p.id.as_str())) {
                (Some(said), Some((_, offset))) => said != *offset,
                _ => false,
            };
            let whole = found == transaction.results.len();
            let committed = match transaction.outcome {
                Outcome::Committed => true,
                Outcome::RolledBack(_) => false,
                Outcome::Unknown => whole && found > 0,
            };
            let told = transaction.outcome != Outcome::Unknown;
            // One that only nacks leaves no product to tell by.
            if told || !transaction.results.is_empty() {
                self.happened.insert(transaction.number, committed);
            }
            let right = if committed { whole } else { found == 0 };
            if !right || doubled || transaction.results.iter().any(moved) {
                wrong.push((format!("{found} products are there"), vec![transaction]));
            }
            if transaction.spoiled && committed {
                wrong.push(("an ack of nothing was committed".to_owned(), vec![transaction]));
            }
            let rejected =
                matches!(&transaction.outcome, Outcome::RolledBack(why) if why == "rejected_ack");
            let live = transaction.span.ended < self.held[&transaction.pop].0;
            if rejected && live && !transaction.spoiled {
                wrong.push(("rejected under a live lease".to_owned(), vec![transaction]));
            }
            for product in &transaction.results {
                known.insert(&product.id);
                if !committed {
                    continue;
                }
                if let Some((_, other)) = sources.insert(product.source, (0, transaction)) {
                    let text = format!("{:?} has two products", product.source);
                    wrong.push((text, vec![other, transaction]));
                }
            }
        }
        for (id, _) in self.remains.products.iter().filter(|(id, _)| !known.contains(id.as_str())) {
            wrong.push((format!("nobody pushed the product {id}"), vec![]));
        }
        self.unproduced(&sources.keys().copied().collect());
        for (text, transactions) in wrong {
            let events = transactions.into_iter().cloned().map(Event::Transaction).collect();
            self.report(Rule::Transaction, text, events);
        }
    }

    /// Messages of the relaying group that are neither a product nor a dead letter.
    fn unproduced(&mut self, sources: &HashSet<(u32, u64)>) {
        let Some(relay) = self.history.relay else { return };
        let dead = self.remains.dead_letters.iter().filter(|(group, _, _)| *group == relay);
        let dead: HashSet<(u32, u64)> = dead.map(|(_, p, offset)| (*p, *offset)).collect();
        for (partition, log) in self.remains.log.iter().enumerate() {
            for offset in 0..log.len() as u64 {
                let place = (partition as u32, offset);
                if sources.contains(&place) == dead.contains(&place) {
                    let text = format!("{place:?}: a product or a dead letter, one of them");
                    let events = self.events_of(relay, partition as u32);
                    self.report(Rule::Transaction, text, events);
                }
            }
        }
    }

    fn group(&mut self, group: usize) {
        let mut deliveries: Vec<Vec<Delivery<'a>>> = vec![Vec::new(); self.history.partitions];
        let mut lost = Vec::new();
        for pop in self.pops().filter(|pop| pop.group == group) {
            match &pop.claims {
                None => lost.push(pop),
                Some(claims) => claims.iter().for_each(|claim| {
                    deliveries[claim.partition as usize].push(Delivery { pop, claim });
                }),
            }
        }
        let mut account = [0; 3];
        let mut used = Lost::default();
        for (partition, mut list) in deliveries.into_iter().enumerate() {
            list.sort_by_key(|d| d.pop.span.ended);
            let run = Run { group, partition: partition as u32, lost: &lost };
            let before = self.found.len();
            self.messages(&run, &list);
            self.exclusive(&run, &list);
            self.forward(&run, &list);
            self.returned(&run, &list);
            if self.found.len() == before {
                let [acked, dead, missed] = self.replay(&run, &list, &mut used);
                account = [account[0] + acked, account[1] + dead, account[2] + missed];
            }
        }
        // Each lost pop explains so much and no more.
        let most = |auto: bool| lost.iter().filter(move |pop| pop.auto == auto);
        let attempts: u64 = most(false).map(|pop| pop.partitions).sum();
        let messages: u64 = most(true).map(|pop| pop.batch).sum();
        if used.attempts > attempts || used.messages > messages {
            let text = format!("group {group}: lost pops would have to explain {used:?}");
            self.report(Rule::Account, text, vec![]);
        }
        self.accounts.push(account);
    }

    /// What was delivered is what lies at that offset.
    fn messages(&mut self, run: &Run<'_>, list: &[Delivery<'a>]) {
        for d in list {
            let log = &self.remains.log[run.partition as usize];
            let there = log.get(d.claim.first as usize..=d.claim.last() as usize);
            if there != Some(&d.claim.ids) {
                let text = format!("{run}: another message than the one at its offset");
                self.report(Rule::Pushed, text, vec![Event::Pop(d.pop.clone())]);
            }
        }
    }

    /// From when to when a delivery surely holds its partition.
    fn sure_hold(&self, d: Delivery<'a>) -> Option<Span> {
        if d.pop.auto {
            return None;
        }
        let list = self.settles.get(&(d.pop.number, d.claim.partition));
        let ends = |settle: &&&Settle| {
            let signal = settle.items.iter().any(|(_, status)| *status != Status::Completed);
            signal || settle.items.iter().any(|(offset, _)| *offset == d.claim.last())
        };
        let settled = list.into_iter().flatten().find(ends).map(|settle| settle.span.sent);
        let until = self.held[&d.pop.number].0;
        let span = Span { sent: d.pop.span.ended, ended: settled.unwrap_or(until).min(until) };
        (span.ended > span.sent).then_some(span)
    }

    fn exclusive(&mut self, run: &Run<'_>, list: &[Delivery<'a>]) {
        let mut holder: Option<(Span, Delivery<'a>)> = None;
        for &d in list {
            let hold = self.sure_hold(d);
            // A pop that commits holds nothing, and may not come in between either.
            let within = |held: Span| match (hold, d.pop.auto) {
                (Some(own), _) => own.sent < held.ended && held.sent < own.ended,
                (None, true) => held.sent < d.pop.span.sent && d.pop.span.ended < held.ended,
                (None, false) => false,
            };
            if let Some((held, other)) = holder.filter(|(held, _)| within(*held)) {
                let text = format!(
                    "{run}: pop {} held it from {} to {} us, pop {} got it",
                    other.pop.number, held.sent, held.ended, d.pop.number
                );
                let mut events = vec![Event::Pop(other.pop.clone()), Event::Pop(d.pop.clone())];
                for pop in [other.pop, d.pop] {
                    let settles = self.settles.get(&(pop.number, run.partition));
                    events
                        .extend(settles.into_iter().flatten().map(|s| Event::Settle((*s).clone())));
                    let extends =
                        self.history.events.iter().filter(
                            |event| matches!(event, Event::Extend(e) if e.pop == pop.number),
                        );
                    events.extend(extends.cloned());
                }
                self.report(Rule::Exclusive, text, events);
            }
            let longer = |hold: &Span| holder.is_none_or(|(held, _)| held.ended < hold.ended);
            holder = hold.filter(longer).map(|hold| (hold, d)).or(holder);
        }
    }

    /// Of two deliveries that surely came one after the other, the later does not begin earlier;
    /// if it begins at the same message, it counts as a later attempt.
    fn forward(&mut self, run: &Run<'_>, list: &[Delivery<'a>]) {
        let mut by_sent = list.to_vec();
        by_sent.sort_by_key(|d| d.pop.span.sent);
        let mut before = list.iter().peekable();
        let mut furthest: Option<Delivery<'a>> = None;
        let rank = |d: &Delivery<'a>| (d.claim.first, d.pop.auto, d.claim.attempt);
        for d in by_sent {
            while let Some(earlier) = before.next_if(|e| e.pop.span.ended < d.pop.span.sent) {
                if furthest.is_none_or(|f| rank(&f) < rank(earlier)) {
                    furthest = Some(*earlier);
                }
            }
            if let Some(f) = furthest.filter(|f| rank(f) >= rank(&d)) {
                let same = f.claim.first == d.claim.first;
                let rule = if same { Rule::Attempt } else { Rule::Order };
                let text = format!("{run}: pop {} goes back behind {}", d.pop.number, f.pop.number);
                self.report(rule, text, vec![Event::Pop(f.pop.clone()), Event::Pop(d.pop.clone())]);
            }
        }
    }

    /// What an answered ack settled, or an answered pop committed, is not in a later delivery.
    fn returned(&mut self, run: &Run<'_>, list: &[Delivery<'a>]) {
        // Each with the moment from which on it is known: first offset not settled, and by what.
        let mut known: Vec<(Micros, u64, Event)> = Vec::new();
        for d in list {
            if d.pop.auto {
                known.push((d.pop.span.ended, d.claim.last() + 1, Event::Pop(d.pop.clone())));
            }
            let settles = self.settles.get(&(d.pop.number, run.partition));
            for settle in settles.into_iter().flatten() {
                let Answer::Judged(verdicts) = &settle.answer else { continue };
                let signals = settle.items.iter().filter(|(_, s)| *s != Status::Completed);
                let head = signals.map(|(offset, _)| *offset).min().unwrap_or(u64::MAX);
                let done = settle.items.iter().zip(verdicts).filter(|((offset, status), v)| {
                    v.dead_lettered || v.success && *status == Status::Completed && *offset < head
                });
                if let Some(done) = done.map(|((offset, _), _)| *offset).max() {
                    known.push((settle.span.ended, done + 1, Event::Settle((*settle).clone())));
                }
            }
        }
        known.sort_by_key(|(at, _, _)| *at);
        let mut by_sent = list.to_vec();
        by_sent.sort_by_key(|d| d.pop.span.sent);
        let mut known = known.into_iter().peekable();
        let mut settled: Option<(u64, Event)> = None;
        for d in by_sent {
            while let Some((_, next, event)) = known.next_if(|(at, _, _)| *at < d.pop.span.sent) {
                if settled.as_ref().is_none_or(|(most, _)| *most < next) {
                    settled = Some((next, event));
                }
            }
            if let Some((next, event)) = settled.as_ref().filter(|(n, _)| d.claim.first < *n) {
                let text = format!("{run}: up to {next} was settled, {} came", d.claim.first);
                let events = vec![event.clone(), Event::Pop(d.pop.clone())];
                self.report(Rule::Returned, text, events);
            }
        }
    }

    /// Runs the contract along the deliveries and their acks. Returns how many messages were
    /// acknowledged, dead lettered, and perhaps committed in a pop without an answer.
    fn replay(&mut self, run: &Run<'_>, list: &[Delivery<'a>], used: &mut Lost) -> [u64; 3] {
        let mut order = list.to_vec();
        order.sort_by_key(|d| (d.claim.first, d.pop.auto, d.claim.attempt, d.pop.span.ended));
        let length = self.remains.log[run.partition as usize].len() as u64;
        let mut states = vec![Cursor::new()];
        let mut missed = 0;
        let mut last_sent = 0;
        for d in order {
            let lost = run.lost_between(last_sent, d.pop.span.ended);
            last_sent = d.pop.span.sent;
            let steps = states.iter().map(|s| s.claim(d.pop.number, d.pop.auto, d.claim, lost));
            let (good, bad): (Vec<_>, Vec<_>) = steps.partition(Result::is_ok);
            let mut good: Vec<(Cursor, Lost)> = good.into_iter().flatten().collect();
            if good.is_empty() {
                let rule = match bad.into_iter().find_map(Result::err) {
                    Some(Fault::Attempt) => Rule::Attempt,
                    Some(Fault::Settled) => Rule::Returned,
                    _ => Rule::Order,
                };
                let text = format!("{run}: pop {} fits no state of {states:?}", d.pop.number);
                let events = self.events_around(run, d.pop.span.ended);
                self.report(rule, text, events);
                return [0; 3];
            }
            good.sort_by_key(|(_, lost)| lost.attempts + lost.messages);
            used.attempts += good[0].1.attempts;
            used.messages += good[0].1.messages;
            missed += good[0].1.messages;
            states = good.into_iter().map(|(state, _)| state).collect();
            if !self.acks(run, d, &mut states) {
                return [0; 3];
            }
            states.dedup();
        }
        let tail = run.lost_between(last_sent, Micros::MAX).messages;
        let mut rows: Vec<u64> = self
            .remains
            .dead_letters
            .iter()
            .filter(|(group, partition, _)| (*group, *partition) == (run.group, run.partition))
            .map(|(_, _, offset)| *offset)
            .collect();
        rows.sort_unstable();
        let fits = |state: &&Cursor| {
            state.dead_letters == rows && state.next <= length && length - state.next <= tail
        };
        let Some(state) = states.iter().find(fits) else {
            let text = format!("{run}: {length} pushed, dead letters {rows:?}, states {states:?}");
            let events = self.events_around(run, Micros::MAX);
            self.report(Rule::Account, text, events);
            return [0; 3];
        };
        missed += length - state.next;
        used.messages += length - state.next;
        let dead = rows.len() as u64;
        [length - missed - dead, dead, missed]
    }

    /// The acks under one lease, on every possible state. False: none of them can be.
    fn acks(&mut self, run: &Run<'_>, d: Delivery<'a>, states: &mut Vec<Cursor>) -> bool {
        let settles = self.settles.get(&(d.pop.number, run.partition)).cloned();
        for settle in settles.into_iter().flatten() {
            let next = self.after_ack(d.pop, settle, states);
            if next.is_empty() {
                let limit = self.history.retry_limit;
                let wanted: Vec<_> = states
                    .iter()
                    .map(|state| state.settle(settle.pop, &settle.items, limit).1)
                    .collect();
                let text = format!("{run}: an ack of pop {} may say {wanted:?}", settle.pop);
                let events = self.events_around(run, settle.span.ended);
                self.report(Rule::Verdict, text, events);
                return false;
            }
            *states = next;
        }
        true
    }

    fn after_ack(&self, pop: &Pop, settle: &Settle, states: &[Cursor]) -> Vec<Cursor> {
        let (sure, perhaps) = self.held[&pop.number];
        let may_have_lapsed = settle.span.ended >= sure;
        let may_live = settle.span.sent <= perhaps + WALL_SLACK;
        let happened = settle.transaction.and_then(|number| self.happened.get(&number).copied());
        let mut out = Vec::new();
        for state in states {
            let (after, verdicts) =
                state.settle(settle.pop, &settle.items, self.history.retry_limit);
            let holds = state.holds(settle.pop);
            let fits = |said: &[super::event::Verdict]| {
                said.len() == verdicts.len()
                    && said.iter().zip(&verdicts).all(|(said, wanted)| {
                        said.success == wanted.success
                            && said.dead_lettered == wanted.dead_lettered
                            && said.lease_refused == wanted.lease_refused
                            && (said.released.is_none() || said.released == wanted.released)
                    })
            };
            match &settle.answer {
                Answer::Unknown if happened == Some(false) => out.push(state.clone()),
                Answer::Unknown if happened == Some(true) && holds => out.push(after),
                Answer::Unknown if happened == Some(true) => {}
                Answer::Unknown => {
                    out.push(state.clone());
                    if holds && may_live {
                        out.push(after);
                    }
                }
                Answer::RolledBack => out.push(state.clone()),
                Answer::Judged(said) => {
                    if (!holds || may_live) && fits(said) {
                        out.push(after);
                    }
                    let refused = said.iter().all(|v| v.lease_refused && !v.success);
                    if refused && holds && may_have_lapsed {
                        out.push(state.clone());
                    }
                }
            }
        }
        out
    }

    fn events_of(&self, group: usize, partition: u32) -> Vec<Event> {
        let pops: HashSet<u64> =
            self.pops().filter(|pop| pop.group == group).map(|pop| pop.number).collect();
        let about = |event: &&Event| match event {
            Event::Pop(pop) => {
                pop.group == group
                    && pop.claims.iter().flatten().any(|claim| claim.partition == partition)
            }
            Event::Settle(s) => s.partition == partition && pops.contains(&s.pop),
            Event::Kill(_) => true,
            _ => false,
        };
        self.history.events.iter().filter(about).cloned().collect()
    }

    /// The last events of a partition before a moment.
    fn events_around(&self, run: &Run<'_>, until: Micros) -> Vec<Event> {
        let mut events = self.events_of(run.group, run.partition);
        events.sort_by_key(|event| event.span().ended);
        events.retain(|event| event.span().sent <= until);
        events.split_off(events.len().saturating_sub(12))
    }
}

fn claimed(pop: &Pop) -> u64 {
    pop.claims.as_ref().map_or(0, |claims| claims.len() as u64)
}

/// One group on one partition.
struct Run<'a> {
    group: usize,
    partition: u32,
    /// The group's pops without an answer.
    lost: &'a [&'a Pop],
}

impl Run<'_> {
    fn lost_between(&self, from: Micros, to: Micros) -> Lost {
        let between = |pop: &&&Pop| pop.span.sent < to && pop.span.ended + LINGER > from;
        let lost: Vec<_> = self.lost.iter().filter(between).collect();
        Lost {
            attempts: lost.iter().filter(|pop| !pop.auto).count() as u64,
            messages: lost.iter().filter(|pop| pop.auto).map(|pop| pop.batch).sum(),
        }
    }
}

impl fmt::Display for Run<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "group {} on p{}", self.group, self.partition)
    }
}
