//! What the workers say, put together: who believed to hold what at the same time, what explains it, how long a
//! hand-over took, and whether anybody is stuck. Pure: news and the record of disturbances come in as values.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::TTL;
use super::crew::News;
use super::faults::{Disturbance, Record, SPARED};
use super::line::{Beat, End, Line, Micros};

/// Holds are compared with those granted up to this long before and after.
const WINDOW: Micros = 60_000_000;
/// With everybody before it dying, a waiter still gets its turn within this time, outages not counted.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// The machine is busy: what happened this long ago may explain what is seen now.
const SLACK: Duration = Duration::from_millis(300);
/// Violations that are kept in words; all are counted.
const KEPT_VIOLATIONS: usize = 50;

/// One grant of a contended name.
#[derive(Clone, Debug)]
struct Hold {
    worker: usize,
    life: u64,
    token: u64,
    asked: Micros,
    got: Micros,
    /// The last moment at which it was told that it holds; 0 if it never was, or nobody lived to tell.
    believed: Micros,
    let_go: Option<Micros>,
    killed_at: Option<Micros>,
    freed: bool,
    finished: bool,
}

/// Everything counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: u64,
    pub(super) once: u64,
    pub(super) added: u64,
    pub(super) refused: u64,
    pub(super) stopped: u64,
    pub(super) killed_holding: u64,
    pub(super) overlaps: u64,
    pub(super) unexplained_overlaps: u64,
    pub(super) losses: BTreeMap<String, u64>,
    pub(super) unexplained_losses: BTreeMap<String, u64>,
    pub(super) without: BTreeMap<String, u64>,
    pub(super) released: BTreeMap<String, u64>,
}

/// Listens to all workers.
pub(super) struct Judge {
    record: Record,
    names: BTreeMap<String, VecDeque<Hold>>,
    /// When each life of a worker was ended.
    kills: BTreeMap<(usize, u64), Micros>,
    pub(super) counts: Counts,
    /// Who was granted a name last, as far as it is known here.
    last_holder: Arc<AtomicUsize>,
    /// Additions that each worker said it made, by name.
    pub(super) said: BTreeMap<(String, usize), u64>,
    /// From the release of one to the grant of the next, undisturbed, in microseconds.
    pub(super) hand_overs: Vec<Micros>,
    /// From the kill of a holder to the grant of the next.
    pub(super) take_overs: Vec<Micros>,
    /// Resident memory of the spared workers, by worker, over time.
    pub(super) memory: BTreeMap<usize, Vec<(Micros, u64)>>,
    /// What each client had when it said its last word.
    pub(super) last_loads: BTreeMap<usize, u64>,
    pub(super) longest_wait: Duration,
    pub(super) violations: Vec<String>,
    pub(super) violation_count: u64,
}

impl Judge {
    pub(super) fn new(record: Record, last_holder: Arc<AtomicUsize>) -> Self {
        Self {
            record,
            names: BTreeMap::new(),
            kills: BTreeMap::new(),
            counts: Counts::default(),
            last_holder,
            said: BTreeMap::new(),
            hand_overs: Vec::new(),
            take_overs: Vec::new(),
            memory: BTreeMap::new(),
            last_loads: BTreeMap::new(),
            longest_wait: Duration::ZERO,
            violations: Vec::new(),
            violation_count: 0,
        }
    }

    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::Said { worker, life, line: Ok(line) } => self.heard(worker, life, line),
            // A worker that was killed in the middle of a line.
            News::Said { worker, life, line: Err(error) } if !self.was_killed(worker) => {
                self.violation(format!("worker {worker} (life {life}): {error}"));
            }
            News::Said { .. } => {}
            News::Killed { worker, life, at } => {
                self.kills.insert((worker, life), at);
            }
            News::Silent { worker, life } => self.silent(worker, life),
            News::Died { worker, how } => {
                self.violation(format!("worker {worker} ended by itself: {how}"));
            }
        }
    }

    fn was_killed(&self, worker: usize) -> bool {
        let all = self.record.all();
        all.iter().any(|one| one.worker == Some(worker) && one.what.starts_with("worker killed"))
    }

    fn heard(&mut self, worker: usize, life: u64, what: Line) {
        match what {
            Line::Got { name, token, asked, at } => self.got(worker, life, name, (token, asked, at)),
            Line::End(end) => self.ended(worker, life, &end),
            Line::Without { outcome } => *self.counts.without.entry(outcome).or_default() += 1,
            Line::Once => self.counts.once += 1,
            Line::Beat(beat) => self.beat(worker, &beat),
        }
    }

    fn got(&mut self, worker: usize, life: u64, name: String, (token, asked, at): (u64, Micros, Micros)) {
        self.counts.grants += 1;
        self.last_holder.store(worker, Ordering::Relaxed);
        if worker < SPARED {
            let away = self.server_away(asked, at);
            let waited = Duration::from_micros(at.saturating_sub(asked)).saturating_sub(away);
            self.longest_wait = self.longest_wait.max(waited);
        }
        let hold = Hold {
            worker,
            life,
            token,
            asked,
            got: at,
            believed: 0,
            let_go: None,
            killed_at: None,
            freed: false,
            finished: false,
        };
        let holds = self.names.entry(name).or_default();
        // Lines of different processes come in any order; holds are kept in the order of their tokens.
        let place = holds.partition_point(|other| other.token < token);
        let twice = holds.get(place).is_some_and(|other| other.token == token);
        holds.insert(place, hold);
        let mut pairs = Vec::new();
        while holds.front().is_some_and(|first| first.finished && first.got + WINDOW < at) {
            pairs.extend(holds.pop_front().zip(holds.front().cloned()));
        }
        for (first, second) in pairs {
            self.measure(&first, &second);
        }
        if twice {
            self.violation(format!("the fencing token {token} was granted twice"));
        }
    }

    fn ended(&mut self, worker: usize, life: u64, end: &End) {
        match end.outcome.as_str() {
            "added" => {
                self.counts.added += 1;
                *self.said.entry((end.name.clone(), worker)).or_default() += 1;
            }
            "refused" => self.counts.refused += 1,
            _ => self.counts.stopped += 1,
        }
        *self.counts.released.entry(end.released.clone()).or_default() += 1;
        let Some(index) = self.find(&end.name, end.token, worker, life) else {
            return self.violation(format!("worker {worker} ended a hold it never began: {end:?}"));
        };
        let Some(hold) = self.names.get_mut(&end.name).and_then(|holds| holds.get_mut(index)) else { return };
        hold.believed = end.believed;
        hold.let_go = Some(end.let_go);
        hold.freed = end.released == "freed" && end.cause == "-";
        hold.finished = true;
        let (got, believed) = (hold.got, hold.believed);
        if end.outcome == "refused" && end.cause == "-" {
            self.refused_while_holding(worker, got, believed, end);
        }
        if end.cause != "-" {
            self.lost(worker, got, end);
        }
        self.finish(&end.name, index);
    }

    fn find(&self, name: &str, token: u64, worker: usize, life: u64) -> Option<usize> {
        let holds = self.names.get(name)?;
        let index = holds.binary_search_by_key(&token, |hold| hold.token).ok()?;
        (holds[index].worker == worker && holds[index].life == life).then_some(index)
    }

    /// Somebody newer was there, though this one was told that it holds: the same as an overlap.
    fn refused_while_holding(&mut self, worker: usize, got: Micros, believed: Micros, end: &End) {
        if !self.lost_leases(got, believed) {
            let line = format!("worker {worker} was refused while it held {}: {end:?}", end.name);
            self.violation(line);
        }
    }

    fn lost(&mut self, worker: usize, got: Micros, end: &End) {
        *self.counts.losses.entry(end.cause.clone()).or_default() += 1;
        let explained = self.touched(worker, got, end.let_go);
        if !explained {
            *self.counts.unexplained_losses.entry(end.cause.clone()).or_default() += 1;
            // A stalled machine explains that time ran out, but not that the store has something else.
            if ["taken", "missing", "broken"].contains(&end.cause.as_str()) {
                self.violation(format!("worker {worker} lost {} without a reason: {end:?}", end.name));
            }
        }
    }

    /// A worker's last line is here, so holds that it did not end were cut short by its kill.
    fn silent(&mut self, worker: usize, life: u64) {
        let names: Vec<_> = self.names.keys().cloned().collect();
        for name in names {
            let open = |hold: &Hold| hold.worker == worker && hold.life == life && !hold.finished;
            while let Some(index) = self.names.get(&name).and_then(|holds| holds.iter().position(open)) {
                self.counts.killed_holding += 1;
                let killed_at = self.kills.get(&(worker, life)).copied();
                if let Some(hold) = self.names.get_mut(&name).and_then(|holds| holds.get_mut(index)) {
                    (hold.finished, hold.killed_at) = (true, killed_at);
                }
                self.finish(&name, index);
            }
        }
    }

    /// Compares a hold that is over with the others of its time.
    fn finish(&mut self, name: &str, index: usize) {
        let Some(holds) = self.names.get(name) else { return };
        let this = &holds[index];
        let mut suspicious = Vec::new();
        for other in holds {
            let (older, newer) = if other.token < this.token { (other, this) } else { (this, other) };
            let both_known = older.believed > 0 && newer.believed > 0 && older.token != newer.token;
            let at_once = newer.got.max(older.got) < older.believed;
            if both_known && (at_once || older.got > newer.believed) {
                suspicious.push((older.clone(), newer.clone()));
            }
        }
        for (older, newer) in suspicious {
            let ends = older.believed.min(newer.believed);
            if older.got > newer.believed {
                if !self.lost_leases(newer.got, older.got) {
                    let words = format!("{name}: an older token was granted later: {older:?}, {newer:?}");
                    self.violation(words);
                }
            } else if newer.got.max(older.got) < ends {
                // Both were told that they hold, at one moment.
                self.overlap(name, &older, &newer, ends);
            }
        }
    }

    /// Measures what is left at the end.
    pub(super) fn conclude(&mut self) {
        for holds in std::mem::take(&mut self.names).into_values() {
            for hold in holds.iter().filter(|hold| !hold.finished) {
                self.violation(format!("a hold has no end: {hold:?}"));
            }
            for (first, second) in holds.iter().zip(holds.iter().skip(1)) {
                self.measure(first, second);
            }
        }
    }

    fn overlap(&mut self, name: &str, older: &Hold, newer: &Hold, ends: Micros) {
        self.counts.overlaps += 1;
        let grace = u64::try_from((TTL + SLACK).as_micros()).unwrap_or(u64::MAX);
        let explains = |one: &Disturbance| {
            one.loses_leases
                && one.begins <= newer.got
                && one.ends.is_none_or(|over| over + grace >= ends && over >= older.got)
        };
        if !self.record.around(older.got).iter().any(explains) {
            self.counts.unexplained_overlaps += 1;
            self.violation(format!("{name}: two believed to hold it at once: {older:?}, {newer:?}"));
        }
    }

    /// How long it took from one holder to the next, if that one had asked before.
    fn measure(&mut self, first: &Hold, second: &Hold) {
        if let (Some(killed), None) = (first.killed_at, first.let_go)
            && second.asked < killed
            && second.got > killed
        {
            self.take_overs.push(second.got - killed);
        }
        if let (true, Some(let_go)) = (first.freed, first.let_go)
            && second.asked < let_go
            && second.got > let_go
            // Nobody: the name may have been handed to another waiter, who was stopped or killed just then.
            && !self.record.around(let_go).iter().any(|one| one.touches(let_go, second.got, SLACK))
        {
            self.hand_overs.push(second.got - let_go);
        }
    }

    fn beat(&mut self, worker: usize, beat: &Beat) {
        if worker < SPARED {
            self.memory.entry(worker).or_default().push((beat.at, beat.resident_kib));
        }
        self.last_loads.insert(worker, beat.load);
        if beat.waits_since == 0 {
            return;
        }
        let away = self.server_away(beat.waits_since, beat.at);
        let stopped = self.sum(beat.waits_since, beat.at, |one| one.worker == Some(worker));
        let waited = Duration::from_micros(beat.at.saturating_sub(beat.waits_since));
        if waited.saturating_sub(away + stopped) > STUCK_AFTER {
            self.violation(format!("worker {worker} has waited for {waited:?}, outages not counted"));
        }
    }

    /// How long the server was away in this time.
    fn server_away(&self, from: Micros, to: Micros) -> Duration {
        self.sum(from, to, |one| one.server_away)
    }

    fn sum(&self, from: Micros, to: Micros, counts: impl Fn(&Disturbance) -> bool) -> Duration {
        let shared = self
            .record
            .around(from)
            .into_iter()
            .filter(counts)
            .map(|one| one.ends.unwrap_or(to).min(to).saturating_sub(one.begins.max(from)));
        Duration::from_micros(shared.sum())
    }

    /// Whether leases that were held at `from` may have been gone at `to`.
    fn lost_leases(&self, from: Micros, to: Micros) -> bool {
        let around = self.record.around(from);
        around.iter().any(|one| one.loses_leases && one.touches(from, to, SLACK))
    }

    /// Whether something befell the server or this worker in this time.
    fn touched(&self, worker: usize, from: Micros, to: Micros) -> bool {
        let around = self.record.around(from);
        around
            .iter()
            .any(|one| one.worker.is_none_or(|sufferer| sufferer == worker) && one.touches(from, to, SLACK))
    }

    pub(super) fn violation(&mut self, words: String) {
        self.violation_count += 1;
        eprintln!("VIOLATION {words}");
        if self.violations.len() < KEPT_VIOLATIONS {
            self.violations.push(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    fn judge() -> Judge {
        Judge::new(Record::default(), Arc::default())
    }

    fn disturb(judge: &Judge, loses_leases: bool, begins: Micros, ends: Micros) {
        judge.record.all().push(Disturbance {
            what: "something",
            worker: None,
            begins,
            ends: Some(ends),
            loses_leases,
            server_away: !loses_leases,
        });
    }

    fn hear(judge: &mut Judge, worker: usize, line: Line) {
        judge.hear(News::Said { worker, life: 0, line: Ok(line) });
    }

    /// A worker holds from one moment to another, in seconds.
    fn hold(judge: &mut Judge, worker: usize, token: u64, got: Micros, believed: Micros, outcome: &str) {
        let (at, believed) = (got * SECOND, believed * SECOND);
        hear(judge, worker, Line::Got { name: "hot:0".into(), token, asked: at - SECOND, at });
        let end = End {
            name: "hot:0".into(),
            token,
            outcome: outcome.into(),
            believed,
            let_go: believed,
            released: "freed".into(),
            cause: "-".into(),
        };
        hear(judge, worker, Line::End(end));
    }

    #[test]
    fn two_who_hold_at_once_are_a_violation_unless_the_store_lost_a_lease() {
        for (loses_leases, violations) in [(false, 1), (true, 0)] {
            let mut judge = judge();
            disturb(&judge, loses_leases, 100 * SECOND, 101 * SECOND);
            hold(&mut judge, 0, 1, 99, 102, "added");
            hold(&mut judge, 1, 2, 101, 103, "added");
            assert_eq!((judge.counts.overlaps, judge.violation_count), (1, violations));
        }
    }

    #[test]
    fn a_loss_long_before_explains_nothing() {
        let mut judge = judge();
        disturb(&judge, true, 90 * SECOND, 91 * SECOND);
        hold(&mut judge, 0, 1, 99, 102, "added");
        hold(&mut judge, 1, 2, 101, 103, "added");
        assert_eq!(judge.counts.unexplained_overlaps, 1);
    }

    #[test]
    fn holders_one_after_the_other_are_as_it_should_be_and_measured() {
        let mut judge = judge();
        hold(&mut judge, 0, 1, 99, 100, "added");
        hold(&mut judge, 1, 2, 101, 102, "added");
        judge.conclude();
        assert_eq!((judge.counts.overlaps, judge.violation_count), (0, 0));
        assert_eq!(judge.said.values().sum::<u64>(), 2);
    }

    #[test]
    fn tokens_that_go_back_or_come_twice_are_violations() {
        let mut judge = judge();
        hold(&mut judge, 0, 2, 99, 100, "added");
        hold(&mut judge, 1, 1, 101, 102, "added");
        assert_eq!(judge.violation_count, 1, "{:?}", judge.violations);
        hold(&mut judge, 2, 2, 103, 104, "added");
        assert!(judge.violation_count > 1);
    }

    #[test]
    fn a_refusal_of_one_who_holds_is_a_violation() {
        let mut judge = judge();
        hold(&mut judge, 0, 1, 99, 100, "refused");
        assert_eq!(judge.violation_count, 1);
    }

    #[test]
    fn who_waits_too_long_is_stuck_unless_the_server_was_away() {
        let beat = |at| Line::Beat(Beat { at, resident_kib: 1, waits_since: 100 * SECOND, load: 0 });
        let mut judge = judge();
        disturb(&judge, false, 110 * SECOND, 140 * SECOND);
        hear(&mut judge, 0, beat(185 * SECOND));
        assert_eq!(judge.violation_count, 0);
        hear(&mut judge, 0, beat(195 * SECOND));
        assert_eq!(judge.violation_count, 1);
    }

    #[test]
    fn a_hold_that_was_cut_short_by_a_kill_has_no_end_and_needs_none() {
        let mut judge = judge();
        let got = Line::Got { name: "hot:0".into(), token: 1, asked: 99 * SECOND, at: 100 * SECOND };
        hear(&mut judge, 3, got);
        judge.hear(News::Killed { worker: 3, life: 0, at: 101 * SECOND });
        judge.hear(News::Silent { worker: 3, life: 0 });
        let got = Line::Got { name: "hot:0".into(), token: 2, asked: 99 * SECOND, at: 102 * SECOND };
        hear(&mut judge, 1, got);
        judge.hear(News::Silent { worker: 1, life: 0 });
        judge.conclude();
        assert_eq!((judge.counts.killed_holding, judge.violation_count), (2, 0));
        assert_eq!(judge.take_overs, [SECOND]);
    }
}
