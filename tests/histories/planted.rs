//! The checker under test: a history without a fault passes, and each with one planted fault is
//! found under the rule it breaks, and under no other.

use super::check::{History, Rule, check};
use super::event::{
    Answer, Claim, Event, Extend, Outcome, Pop, Product, Push, Pushed, Remains, Settle, Span,
    Status, Transaction, Verdict,
};
use Status::{Completed, DeadLetter, Failed, Retry};

const MS: u64 = 1_000;
const PLAIN: usize = 0;
const RELAY: usize = 1;

/// Two groups on one partition with six messages, both settled at the end.
struct Story {
    history: History,
    remains: Remains,
    pops: u64,
}

fn span(sent_ms: u64, ended_ms: u64) -> Span {
    Span { sent: sent_ms * MS, ended: ended_ms * MS }
}

fn ids(from: u64, to: u64) -> Vec<String> {
    (from..=to).map(|n| format!("m{n}")).collect()
}

fn good(success: bool, released: bool) -> Verdict {
    Verdict { success, lease_refused: !success, dead_lettered: false, released: Some(released) }
}

impl Story {
    /// All messages are pushed before anything else happens.
    fn new() -> Self {
        let items = (0..6).map(|offset| Pushed {
            partition: 0,
            id: format!("m{offset}"),
            answer: Some((true, offset)),
        });
        let push = Push { span: span(0, 5), again: false, items: items.collect() };
        Self {
            history: History {
                groups: 1,
                partitions: 1,
                retry_limit: 1,
                relay: None,
                events: vec![Event::Push(push)],
            },
            remains: Remains { log: vec![ids(0, 5)], ..Remains::default() },
            pops: 0,
        }
    }

    /// A pop at a moment, answered 10 ms later, with a lease of one second; its number.
    fn pop(&mut self, at_ms: u64, first: u64, last: u64, attempt: u64) -> u64 {
        self.popped(PLAIN, at_ms, false, Some((first, last, attempt)))
    }

    fn popped(
        &mut self,
        group: usize,
        at_ms: u64,
        auto: bool,
        got: Option<(u64, u64, u64)>,
    ) -> u64 {
        self.pops += 1;
        let claims = got.map(|(first, last, attempt)| {
            vec![Claim { partition: 0, first, ids: ids(first, last), attempt }]
        });
        self.history.events.push(Event::Pop(Pop {
            span: span(at_ms, at_ms + 10),
            number: self.pops,
            group,
            batch: 10,
            partitions: 1,
            auto,
            length: 1_000 * MS,
            claims,
        }));
        self.pops
    }

    fn ack(&mut self, at_ms: u64, pop: u64, items: &[(u64, Status)], answer: Answer) {
        self.history.events.push(Event::Settle(Settle {
            span: span(at_ms, at_ms + 10),
            pop,
            partition: 0,
            items: items.to_vec(),
            answer,
            transaction: None,
        }));
    }

    /// Completes a whole claim.
    fn complete(&mut self, at_ms: u64, pop: u64, first: u64, last: u64) {
        let items: Vec<_> = (first..=last).map(|offset| (offset, Completed)).collect();
        let verdicts = items.iter().map(|_| good(true, true)).collect();
        self.ack(at_ms, pop, &items, Answer::Judged(verdicts));
    }

    /// One pop and one ack of everything.
    fn settled() -> Self {
        let mut story = Self::new();
        let pop = story.pop(100, 0, 5, 1);
        story.complete(200, pop, 0, 5);
        story
    }

    fn broken(&self) -> Vec<Rule> {
        let (violations, _) = check(&self.history, &self.remains);
        let mut rules: Vec<Rule> = violations.iter().map(|v| v.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        violations.iter().for_each(|v| println!("{v}"));
        rules
    }

    fn last_push(&mut self) -> &mut Push {
        match &mut self.history.events[0] {
            Event::Push(push) => push,
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_history_without_a_fault_passes_and_its_account_adds_up() {
    let mut story = Story::new();
    let first = story.pop(100, 0, 2, 1);
    // A part of it is settled, the rest comes back when the lease has lapsed.
    story.ack(200, first, &[(0, Completed)], Answer::Judged(vec![good(true, false)]));
    let second = story.pop(1_200, 1, 3, 2);
    story.ack(1_250, first, &[(1, Completed)], Answer::Judged(vec![good(false, false)]));
    story.ack(1_300, second, &[(1, Failed)], Answer::Judged(vec![good(true, true)]));
    let third = story.pop(1_400, 1, 3, 3);
    let spent = Verdict { dead_lettered: true, ..good(true, true) };
    let items = [(1, Failed), (2, Completed), (3, Retry)];
    let verdicts = vec![spent, good(true, true), good(true, true)];
    story.ack(1_500, third, &items, Answer::Judged(verdicts));
    story.remains.dead_letters.push((PLAIN, 0, 1));
    let fourth = story.pop(1_600, 3, 5, 1);
    // An ack without an answer, and what its repeat says once it had happened.
    story.ack(1_700, fourth, &[(5, Completed)], Answer::Unknown);
    story.ack(1_800, fourth, &[(5, Completed)], Answer::Judged(vec![good(true, true)]));
    assert_eq!(story.broken(), []);
    assert_eq!(check(&story.history, &story.remains).1, [[5, 1, 0]]);
    assert_eq!(Story::settled().broken(), []);
}

#[test]
fn a_lost_a_moved_a_doubled_and_an_invented_message_are_found() {
    let plant = |change: &dyn Fn(&mut Story)| {
        let mut story = Story::settled();
        change(&mut story);
        story.broken()
    };
    // Pushed and answered, and not there.
    let lost = plant(&|s| {
        let pushed = Pushed { partition: 0, id: "m6".to_owned(), answer: Some((true, 6)) };
        s.last_push().items.push(pushed);
    });
    assert_eq!(lost, [Rule::Pushed]);
    let moved = plant(&|s| s.last_push().items.swap(1, 2));
    assert_eq!(moved, [], "the order of a request's items says nothing");
    let moved = plant(&|s| s.last_push().items[1].answer = Some((true, 2)));
    assert_eq!(moved, [Rule::Pushed]);
    let invented = plant(&|s| {
        s.last_push().items.remove(3);
    });
    assert_eq!(invented, [Rule::Pushed]);
    let doubled = plant(&|s| {
        s.last_push().items.remove(3);
        s.remains.log[0][3] = "m1".to_owned();
        if let Event::Pop(Pop { claims: Some(claims), .. }) = &mut s.history.events[1] {
            claims[0].ids[3] = "m1".to_owned();
        }
    });
    assert_eq!(doubled, [Rule::Pushed]);
    let duplicate = plant(&|s| s.last_push().items[1].answer = Some((false, 1)));
    assert_eq!(duplicate, [Rule::Pushed], "nothing was there to be a duplicate of");
    let torn = plant(&|s| {
        let half = Pushed { partition: 0, id: "m6".to_owned(), answer: None };
        s.last_push().items.push(half);
        s.last_push().items.iter_mut().for_each(|item| item.answer = None);
    });
    assert_eq!(torn, [Rule::Pushed], "half of an unanswered append");
    let other = plant(&|s| {
        if let Event::Pop(Pop { claims: Some(claims), .. }) = &mut s.history.events[1] {
            claims[0].ids[3] = "m1".to_owned();
        }
    });
    assert_eq!(other, [Rule::Pushed], "delivered what lies elsewhere");
}

#[test]
fn two_leases_at_once_are_found() {
    for (second_ms, found) in [(500, true), (1_110, false)] {
        let mut story = Story::new();
        story.pop(100, 0, 5, 1);
        let second = story.pop(second_ms, 0, 5, 2);
        story.complete(second_ms + 50, second, 0, 5);
        let wanted = if found { vec![Rule::Exclusive] } else { vec![] };
        assert_eq!(story.broken(), wanted, "{second_ms}");
    }
    // An extension counts, an unanswered one does not.
    for (renewed, found) in [(Some(1), true), (None, false)] {
        let mut story = Story::new();
        let first = story.pop(100, 0, 5, 1);
        let (span, length) = (span(900, 910), 2_000 * MS);
        story.history.events.push(Event::Extend(Extend { span, pop: first, length, renewed }));
        let second = story.pop(2_000, 0, 5, 2);
        story.complete(2_050, second, 0, 5);
        let wanted = if found { vec![Rule::Exclusive] } else { vec![] };
        assert_eq!(story.broken(), wanted, "{renewed:?}");
    }
    // A delivery that commits, while somebody holds the partition.
    let mut story = Story::new();
    story.pop(100, 0, 5, 1);
    story.popped(PLAIN, 500, true, Some((0, 5, 1)));
    assert_eq!(story.broken(), [Rule::Exclusive]);
    // The ack of a part ends nothing; a nack does.
    for (status, found) in [(Completed, true), (Retry, false)] {
        let mut story = Story::new();
        let first = story.pop(100, 0, 5, 1);
        let released = status == Retry;
        let from = u64::from(status == Completed);
        story.ack(200, first, &[(0, status)], Answer::Judged(vec![good(true, released)]));
        let second = story.pop(300, from, 5, 2);
        story.complete(400, second, from, 5);
        let wanted = if found { vec![Rule::Exclusive] } else { vec![] };
        assert_eq!(story.broken(), wanted, "{status:?}");
    }
}

#[test]
fn a_settled_message_that_comes_back_is_found() {
    let mut story = Story::settled();
    story.pop(300, 5, 5, 1);
    assert_eq!(story.broken(), [Rule::Returned]);
    let mut story = Story::new();
    story.popped(PLAIN, 100, true, Some((0, 5, 1)));
    let again = story.pop(300, 4, 5, 1);
    story.complete(400, again, 4, 5);
    assert_eq!(story.broken(), [Rule::Returned]);
    // While the ack is still under way nobody can know: only the order of things is wrong then.
    let mut story = Story::settled();
    let again = story.pop(205, 0, 5, 2);
    story.complete(400, again, 0, 5);
    assert_eq!(story.broken(), [Rule::Returned]);
}

#[test]
fn deliveries_that_go_back_or_skip_are_found() {
    let mut story = Story::new();
    let first = story.pop(100, 2, 3, 1);
    story.complete(150, first, 2, 3);
    let second = story.pop(200, 4, 5, 1);
    story.complete(250, second, 4, 5);
    assert_eq!(story.broken(), [Rule::Order], "the first two messages are left out");
    // Back, with a lapse in between, so that nothing was settled yet.
    let mut story = Story::new();
    story.pop(100, 1, 3, 1);
    let second = story.pop(1_200, 0, 5, 1);
    story.complete(1_300, second, 0, 5);
    assert_eq!(story.broken(), [Rule::Order]);
}

#[test]
fn a_wrong_delivery_attempt_is_found() {
    for (attempt, right) in [(1, false), (2, true), (3, false)] {
        let mut story = Story::new();
        story.pop(100, 0, 5, 1);
        let second = story.pop(1_200, 0, 5, attempt);
        story.complete(1_300, second, 0, 5);
        let wanted = if right { vec![] } else { vec![Rule::Attempt] };
        assert_eq!(story.broken(), wanted, "{attempt}");
    }
    // A pop whose answer was lost may have been an attempt; two cannot be explained by it.
    for (attempt, right) in [(2, true), (3, true), (4, false)] {
        let mut story = Story::new();
        story.pop(100, 0, 5, 1);
        story.popped(PLAIN, 1_150, false, None);
        let second = story.pop(2_300, 0, 5, attempt);
        story.complete(2_400, second, 0, 5);
        let wanted = if right { vec![] } else { vec![Rule::Attempt] };
        assert_eq!(story.broken(), wanted, "{attempt}");
    }
}

#[test]
fn verdicts_that_the_contract_does_not_give_are_found() {
    // Refused though the lease lived.
    let mut story = Story::settled();
    let items: Vec<_> = (0..6).map(|offset| (offset, Completed)).collect();
    story.history.events.pop();
    story.ack(200, 1, &items, Answer::Judged(vec![good(false, false); 6]));
    assert_eq!(story.broken(), [Rule::Verdict]);
    // Taken though it had lapsed for long.
    let mut story = Story::new();
    let pop = story.pop(100, 0, 5, 1);
    story.complete(2_000, pop, 0, 5);
    assert_eq!(story.broken(), [Rule::Verdict]);
    // A dead letter before the budget is spent.
    let mut story = Story::new();
    let pop = story.pop(100, 0, 5, 1);
    let spent = Verdict { dead_lettered: true, ..good(true, true) };
    story.ack(200, pop, &[(0, Failed)], Answer::Judged(vec![spent]));
    assert_eq!(story.broken(), [Rule::Verdict]);
    // A nack that says the lease goes on.
    let mut story = Story::new();
    let pop = story.pop(100, 0, 5, 1);
    story.ack(200, pop, &[(0, Retry)], Answer::Judged(vec![good(true, false)]));
    assert_eq!(story.broken(), [Rule::Verdict]);
}

#[test]
fn an_extension_that_renews_too_little_or_too_late_is_found() {
    for (at_ms, renewed, right) in
        [(500, 1, true), (500, 0, false), (500, 2, false), (3_000, 1, false)]
    {
        let mut story = Story::new();
        let first = story.pop(100, 0, 5, 1);
        let (span, renewed) = (span(at_ms, at_ms + 10), Some(renewed));
        story.history.events.push(Event::Extend(Extend { span, pop: first, length: MS, renewed }));
        let second = story.pop(5_000, 0, 5, 2);
        story.complete(5_100, second, 0, 5);
        let wanted = if right { vec![] } else { vec![Rule::Extension] };
        assert_eq!(story.broken(), wanted, "{at_ms} {renewed:?}");
    }
}

#[test]
fn an_account_that_does_not_add_up_is_found() {
    // One message is neither acked nor pending nor a dead letter.
    let mut story = Story::new();
    let pop = story.pop(100, 0, 4, 1);
    story.complete(200, pop, 0, 4);
    assert_eq!(story.broken(), [Rule::Account]);
    // A dead letter that is nowhere, one that is there twice, and one that nobody filed.
    let spent = Verdict { dead_lettered: true, ..good(true, true) };
    for (rows, right) in
        [(vec![0], true), (vec![], false), (vec![0, 0], false), (vec![0, 1], false)]
    {
        let mut story = Story::new();
        let pop = story.pop(100, 0, 5, 1);
        let mut items: Vec<_> = (0..6).map(|offset| (offset, Completed)).collect();
        items[0].1 = DeadLetter;
        let mut verdicts = vec![good(true, true); 6];
        verdicts[0] = spent.clone();
        story.ack(200, pop, &items, Answer::Judged(verdicts));
        story.remains.dead_letters = rows.iter().map(|offset| (PLAIN, 0, *offset)).collect();
        let wanted = if right { vec![] } else { vec![Rule::Account] };
        assert_eq!(story.broken(), wanted, "{rows:?}");
    }
    // Lost pops that commit explain what nobody saw, up to what they asked for.
    let mut story = Story::new();
    story.popped(PLAIN, 50, true, None);
    let pop = story.pop(100, 4, 5, 1);
    story.complete(200, pop, 4, 5);
    assert_eq!(story.broken(), []);
    assert_eq!(check(&story.history, &story.remains).1, [[2, 0, 4]]);
}

/// A relaying group that settles everything in one transaction.
fn relayed(outcome: Outcome) -> Story {
    let mut story = Story::settled();
    story.history.groups = 2;
    story.history.relay = Some(RELAY);
    let pop = story.popped(RELAY, 100, false, Some((0, 5, 1)));
    let verdicts = vec![Verdict { released: None, ..good(true, true) }; 6];
    let answer = match outcome {
        Outcome::Committed => Answer::Judged(verdicts),
        Outcome::RolledBack(_) => Answer::RolledBack,
        Outcome::Unknown => Answer::Unknown,
    };
    story.history.events.push(Event::Settle(Settle {
        span: span(200, 210),
        pop,
        partition: 0,
        items: (0..6).map(|offset| (offset, Completed)).collect(),
        answer,
        transaction: Some(70),
    }));
    let product = |offset| Product { id: format!("r{offset}"), source: (0, offset), offset: None };
    story.history.events.push(Event::Transaction(Transaction {
        span: span(200, 210),
        number: 70,
        pop,
        outcome,
        spoiled: false,
        results: (0..6).map(product).collect(),
    }));
    story.remains.products = (0..6).map(|offset| (format!("r{offset}"), offset)).collect();
    story
}

#[test]
fn a_transaction_that_is_not_whole_or_was_rolled_back_is_found() {
    for outcome in [Outcome::Committed, Outcome::Unknown] {
        assert_eq!(relayed(outcome.clone()).broken(), [], "{outcome:?}");
        let mut torn = relayed(outcome.clone());
        torn.remains.products.pop();
        assert!(torn.broken().contains(&Rule::Transaction), "{outcome:?} in part");
        let mut doubled = relayed(outcome.clone());
        doubled.remains.products.push(("r0".to_owned(), 6));
        assert_eq!(doubled.broken(), [Rule::Transaction], "{outcome:?} twice");
    }
    // Nothing of it, though the group goes on as if it had happened.
    let mut lost = relayed(Outcome::Committed);
    lost.remains.products.clear();
    assert_eq!(lost.broken(), [Rule::Transaction]);
    // Rolled back, and its products are there all the same.
    let duplicate = Outcome::RolledBack("duplicate".to_owned());
    assert!(relayed(duplicate).broken().contains(&Rule::Transaction));
    let rejected = Outcome::RolledBack("rejected_ack".to_owned());
    let mut rejected = relayed(rejected);
    rejected.remains.products.clear();
    assert!(rejected.broken().contains(&Rule::Transaction), "rejected under a live lease");
    let mut spoiled = relayed(Outcome::Committed);
    if let Some(Event::Transaction(transaction)) = spoiled.history.events.last_mut() {
        transaction.spoiled = true;
    }
    assert_eq!(spoiled.broken(), [Rule::Transaction]);
    // A product of two transactions, and one of none.
    let mut invented = relayed(Outcome::Committed);
    invented.remains.products.push(("r9".to_owned(), 9));
    assert_eq!(invented.broken(), [Rule::Transaction]);
}

#[test]
fn an_unanswered_transaction_that_left_nothing_has_settled_nothing() {
    let mut story = relayed(Outcome::Unknown);
    story.remains.products.clear();
    // The group does not get its messages again: they are neither products nor pending.
    assert_eq!(story.broken(), [Rule::Transaction, Rule::Account]);
}
