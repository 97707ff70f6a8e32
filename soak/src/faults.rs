//! What befalls the workers and the server in a soak, in an order that a seed determines, and the record of it: the
//! judge asks the record what explains a loss or an overlap.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{BreakMode, Client};
use leasehold_testkit::servers::{Data, RedisServer};

use super::crew::Crew;
use super::line::{Micros, now};
use super::random::Random;
use super::{AnyError, TTL, hot_name};

/// The faked clock of the server is read anew when more than a whole second has passed by its count.
const CLOCK_TAKES_EFFECT: Duration = Duration::from_millis(2_300);
/// The farthest that the server's clock is put forward or back.
const MOST_CLOCK_OFFSET: i64 = 6;
/// Workers that are left alone: their waits and their memory are measured.
pub(super) const SPARED: usize = 2;

/// Longer than any disturbance, in microseconds.
const LONGEST: Micros = 60_000_000;

/// Something that happened.
#[derive(Clone, Debug)]
pub(super) struct Disturbance {
    pub(super) what: &'static str,
    /// Only this worker suffers from it; everybody if `None`.
    pub(super) worker: Option<usize>,
    pub(super) begins: Micros,
    /// `None` while it goes on.
    pub(super) ends: Option<Micros>,
    /// Leases that the server had then may be gone, though their holders do not know yet.
    pub(super) loses_leases: bool,
    /// The server answers nothing meanwhile.
    pub(super) server_away: bool,
}

impl Disturbance {
    /// Whether it went on at some moment of this time, or until `slack` before it.
    pub(super) fn touches(&self, from: Micros, to: Micros, slack: Duration) -> bool {
        let slack = u64::try_from(slack.as_micros()).unwrap_or(u64::MAX);
        self.begins <= to && self.ends.is_none_or(|ends| ends.saturating_add(slack) >= from)
    }
}

/// Everything that happened, shared with the judge.
#[derive(Clone, Debug, Default)]
pub(super) struct Record(Arc<Mutex<Vec<Disturbance>>>);

impl Record {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Disturbance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may still have gone on at this moment, and everything later.
    pub(super) fn around(&self, from: Micros) -> Vec<Disturbance> {
        let all = self.all();
        let late = |one: &&Disturbance| one.begins.saturating_add(LONGEST) >= from;
        all.iter().rev().take_while(late).cloned().collect()
    }

    /// How often each thing happened.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for disturbance in self.all().iter() {
            *counts.entry(disturbance.what).or_default() += 1;
        }
        counts
    }

    fn begin(&self, kind: &Kind, worker: Option<usize>) -> usize {
        let mut all = self.all();
        all.push(Disturbance {
            what: kind.what,
            worker,
            begins: now(),
            ends: None,
            loses_leases: kind.loses_leases,
            server_away: kind.server_away,
        });
        all.len() - 1
    }

    fn end(&self, index: usize) {
        self.all()[index].ends = Some(now());
    }
}

/// A sort of disturbance; how often it is drawn among the others.
struct Kind {
    weight: u64,
    what: &'static str,
    loses_leases: bool,
    server_away: bool,
    act: fn(&mut Faults) -> Result<(), AnyError>,
}

const fn kind(weight: u64, what: &'static str, act: fn(&mut Faults) -> Result<(), AnyError>) -> Kind {
    Kind { weight, what, loses_leases: false, server_away: false, act }
}

const fn losing(mut kind: Kind) -> Kind {
    kind.loses_leases = true;
    kind
}

const fn away(mut kind: Kind) -> Kind {
    kind.server_away = true;
    kind
}

const KINDS: &[Kind] = &[
    kind(8, "worker killed and replaced", Faults::kill_worker),
    kind(6, "worker stopped for less than its TTL", |faults| faults.freeze_worker(100, 1_200)),
    kind(6, "worker stopped for longer than its TTL", |faults| faults.freeze_worker(2_400, 6_000)),
    away(kind(2, "server stopped for less than the TTL", |faults| faults.freeze_server(100, 900))),
    away(kind(1, "server stopped for longer than the TTL", |faults| faults.freeze_server(2_400, 5_000))),
    away(kind(2, "server killed, started again with its data", |faults| faults.restart(Data::Keep))),
    losing(away(kind(1, "server killed, started again empty", |faults| faults.restart(Data::Lose)))),
    kind(2, "every connection closed by the server", |faults| faults.cut("normal")),
    kind(2, "every subscription closed by the server", |faults| faults.cut("pubsub")),
    kind(1, "scripts forgotten by the server", |faults| faults.ask(&["SCRIPT", "FLUSH"])),
    losing(kind(2, "key of a lease deleted", Faults::delete)),
    losing(kind(1, "all keys deleted", |faults| faults.ask(&["FLUSHALL"]))),
    kind(1, "lease broken with notice", |faults| faults.break_lease(BreakMode::Notice)),
    losing(kind(1, "lease broken at once", |faults| faults.break_lease(BreakMode::Now))),
    losing(kind(2, "clock of the server stepped", Faults::step_clock)),
];

/// The server's clock, if it can be moved.
pub(super) struct ServerClock {
    pub(super) file: PathBuf,
    offset_seconds: i64,
    highest: i64,
}

impl ServerClock {
    pub(super) fn new(file: PathBuf) -> std::io::Result<Self> {
        std::fs::write(&file, "+0")?;
        Ok(Self { file, offset_seconds: 0, highest: 0 })
    }

    fn set(&mut self, offset_seconds: i64) -> std::io::Result<()> {
        self.offset_seconds = offset_seconds;
        self.highest = self.highest.max(offset_seconds);
        // Replaced in one step: the server may read it at any time.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{offset_seconds:+}"))?;
        std::fs::rename(new, &self.file)
    }
}

/// Everything that can be disturbed.
pub(super) struct Faults {
    pub(super) server: Arc<RedisServer>,
    pub(super) clock: Option<ServerClock>,
    pub(super) crew: Arc<Mutex<Crew>>,
    pub(super) record: Record,
    /// Who was granted a name last.
    pub(super) last_holder: Arc<AtomicUsize>,
    pub(super) random: Random,
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) operator: Client,
}

impl Faults {
    /// Disturbs until the time is over; what fails then is a failure of the tool.
    pub(super) fn run(mut self, until: Instant) -> Result<(), AnyError> {
        while Instant::now() < until {
            let pause = self.random.millis(300, 3_000);
            std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
            let kind = self.draw();
            (kind.act)(&mut self)?;
            self.crew().look()?;
        }
        Ok(())
    }

    fn draw(&mut self) -> &'static Kind {
        let total = KINDS.iter().map(|kind| kind.weight).sum();
        let mut left = self.random.below(total);
        let drawn = KINDS.iter().find(|kind| {
            let here = left < kind.weight;
            left = left.saturating_sub(kind.weight);
            here
        });
        let kind = drawn.unwrap_or(&KINDS[0]);
        if kind.what.starts_with("clock") && self.clock.is_none() { &KINDS[0] } else { kind }
    }

    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what is done, before and after.
    fn noted(
        &mut self,
        what: &str,
        worker: Option<usize>,
        act: impl FnOnce(&mut Self) -> Result<(), AnyError>,
    ) -> Result<(), AnyError> {
        let kind = KINDS.iter().find(|kind| kind.what == what).ok_or("no such disturbance")?;
        let index = self.record.begin(kind, worker);
        let done = act(self);
        self.record.end(index);
        done
    }

    /// Any worker that is not left alone, or the one that was granted a name last.
    fn victim(&mut self) -> usize {
        let count = self.crew().len();
        let last = self.last_holder.load(Ordering::Relaxed);
        if last >= SPARED && self.random.one_in(2) {
            return last;
        }
        SPARED + self.random.index(count - SPARED)
    }

    fn kill_worker(&mut self) -> Result<(), AnyError> {
        let worker = self.victim();
        self.noted("worker killed and replaced", Some(worker), |faults| faults.crew().kill(worker))
    }

    fn freeze_worker(&mut self, least: u64, most: u64) -> Result<(), AnyError> {
        let (worker, time) = (self.victim(), self.random.millis(least, most));
        let what = if time < TTL {
            "worker stopped for less than its TTL"
        } else {
            "worker stopped for longer than its TTL"
        };
        let kind = KINDS.iter().find(|kind| kind.what == what).ok_or("no such disturbance")?;
        let index = self.record.begin(kind, Some(worker));
        self.crew().freeze(worker, true)?;
        // Other things may happen meanwhile, to this worker too.
        let (crew, record) = (Arc::clone(&self.crew), self.record.clone());
        std::thread::spawn(move || {
            std::thread::sleep(time);
            // One that ended meanwhile is reported by the crew.
            let _ = crew.lock().unwrap_or_else(PoisonError::into_inner).freeze(worker, false);
            record.end(index);
        });
        Ok(())
    }

    fn freeze_server(&mut self, least: u64, most: u64) -> Result<(), AnyError> {
        let time = self.random.millis(least, most);
        let what = if time < TTL {
            "server stopped for less than the TTL"
        } else {
            "server stopped for longer than the TTL"
        };
        self.noted(what, None, |faults| {
            faults.server.freeze()?;
            std::thread::sleep(time);
            Ok(faults.server.thaw()?)
        })
    }

    fn restart(&mut self, data: Data) -> Result<(), AnyError> {
        let down = self.random.millis(0, 3_000);
        let what = match data {
            Data::Keep => "server killed, started again with its data",
            Data::Lose => "server killed, started again empty",
        };
        self.noted(what, None, |faults| {
            if data == Data::Lose {
                faults.put_clock_before_nothing()?;
            }
            faults.server.kill()?;
            std::thread::sleep(down);
            Ok(faults.server.restart(data)?)
        })
    }

    /// A server that has lost its counter must not be behind the clock of the one before: fencing tokens would go
    /// back, and the documentation says so.
    fn put_clock_before_nothing(&mut self) -> Result<(), AnyError> {
        if let Some(clock) = &mut self.clock
            && clock.offset_seconds < clock.highest
        {
            let highest = clock.highest;
            clock.set(highest)?;
            std::thread::sleep(CLOCK_TAKES_EFFECT);
        }
        Ok(())
    }

    fn cut(&mut self, kind: &str) -> Result<(), AnyError> {
        let what = if kind == "normal" {
            "every connection closed by the server"
        } else {
            "every subscription closed by the server"
        };
        self.noted(what, None, |faults| faults.answer(&["CLIENT", "KILL", "TYPE", kind]))
    }

    fn ask(&mut self, command: &[&str]) -> Result<(), AnyError> {
        let what = match command[0] {
            "FLUSHALL" => "all keys deleted",
            _ => "scripts forgotten by the server",
        };
        self.noted(what, None, |faults| {
            if command[0] == "FLUSHALL" {
                faults.put_clock_before_nothing()?;
            }
            faults.answer(command)
        })
    }

    fn delete(&mut self) -> Result<(), AnyError> {
        let key = format!("lock:{}", hot_name(&mut self.random));
        self.noted("key of a lease deleted", None, |faults| faults.answer(&["DEL", &key]))
    }

    fn answer(&self, command: &[&str]) -> Result<(), AnyError> {
        self.server.cli(command).map(drop).map_err(|error| format!("{}: {error}", command.join(" ")).into())
    }

    fn break_lease(&mut self, mode: BreakMode) -> Result<(), AnyError> {
        let name = hot_name(&mut self.random);
        let what = match mode {
            BreakMode::Notice => "lease broken with notice",
            BreakMode::Now => "lease broken at once",
        };
        self.noted(what, None, |faults| {
            // Whatever is answered: with a lost reply it may be broken or not.
            let _ = faults.runtime.block_on(faults.operator.break_lease(&name, mode));
            Ok(())
        })
    }

    fn step_clock(&mut self) -> Result<(), AnyError> {
        let span = 2 * MOST_CLOCK_OFFSET.unsigned_abs() + 1;
        let offset = i64::try_from(self.random.below(span))? - MOST_CLOCK_OFFSET;
        self.noted("clock of the server stepped", None, |faults| {
            if let Some(clock) = &mut faults.clock {
                clock.set(offset)?;
                std::thread::sleep(CLOCK_TAKES_EFFECT);
            }
            Ok(())
        })
    }
}
