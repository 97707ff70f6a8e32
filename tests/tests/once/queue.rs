//! A queue that delivers at least once: every event twice, again whatever was not handled, and what a worker that was
//! killed had not confirmed. It starts the workers, kills and freezes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::Seeded;

/// Deliveries that one worker has at a time.
const AT_ONCE: usize = 8;
/// Longer than everything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Queue {
    store: String,
    carrier: String,
    ttl: Duration,
    seeded: Seeded,
    waiting: VecDeque<usize>,
    workers: Vec<Worker>,
    said: (Sender<Said>, Receiver<Said>),
    pub(crate) kills: u32,
    pub(crate) stops: u32,
    /// By order: the tracking numbers that its events ended with.
    pub(crate) tracking: BTreeMap<String, BTreeSet<String>>,
    /// By order: how many attempts believe to have shipped it.
    pub(crate) ran: BTreeMap<String, u32>,
    pub(crate) again: BTreeMap<String, u32>,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    /// Counts the processes that were started, so that nothing is taken for the present one's word.
    generation: u32,
    unconfirmed: Vec<usize>,
    frozen_until: Option<Instant>,
}

struct Said {
    worker: usize,
    generation: u32,
    line: String,
}

impl Queue {
    /// Every event of `orders` orders, delivered twice, close together.
    pub(crate) fn new(store: &str, carrier: &str, ttl: Duration, orders: usize, seed: u64) -> Self {
        let mut seeded = Seeded(seed);
        let mut deliveries: Vec<usize> = (0..2 * orders).collect();
        for place in 0..deliveries.len() {
            deliveries.swap(place, (place + seeded.index(6)).min(2 * orders - 1));
        }
        Self {
            store: store.to_owned(),
            carrier: carrier.to_owned(),
            ttl,
            seeded,
            waiting: deliveries.into(),
            workers: Vec::new(),
            said: channel(),
            kills: 0,
            stops: 0,
            tracking: BTreeMap::new(),
            ran: BTreeMap::new(),
            again: BTreeMap::new(),
        }
    }

    /// Delivers until every delivery is confirmed, while workers are killed and frozen.
    pub(crate) fn run(&mut self, workers: usize) {
        for number in 0..workers {
            let worker = self.start(number, 0);
            self.workers.push(worker);
        }
        let started = Instant::now();
        let mut disturb_at = started + Duration::from_millis(200);
        while !self.is_done() {
            assert!(
                started.elapsed() < LIMIT,
                "stuck with {} deliveries: {:?}",
                self.waiting.len(),
                self.again
            );
            self.deliver();
            self.thaw(Instant::now());
            match self.said.1.recv_timeout(Duration::from_millis(20)) {
                Ok(said) => self.take(&said),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this keeps a sender"),
            }
            if Instant::now() >= disturb_at {
                self.disturb();
                disturb_at = Instant::now() + Duration::from_millis(100 + self.seeded.below(300));
            }
        }
        self.thaw(started + 2 * LIMIT);
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.workers.iter().all(|worker| worker.unconfirmed.is_empty())
    }

    fn start(&self, number: usize, generation: u32) -> Worker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_once-worker"))
            .args([
                &self.store,
                &format!("worker-{number}"),
                &self.ttl.as_millis().to_string(),
                &self.carrier,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let send = self.said.0.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(Said { worker: number, generation, line });
            }
        });
        Worker { child, stdin, generation, unconfirmed: Vec::new(), frozen_until: None }
    }

    fn deliver(&mut self) {
        // In turn, so that the two deliveries of an event are mostly with two workers at the same time.
        while let Some(worker) = self.workers.iter_mut().min_by_key(|worker| worker.unconfirmed.len()) {
            if worker.unconfirmed.len() >= AT_ONCE {
                return;
            }
            let Some(delivery) = self.waiting.pop_front() else { return };
            worker.unconfirmed.push(delivery);
            // Delivery 2n and 2n + 1 are of order n.
            writeln!(worker.stdin, "{delivery} {}", order_of(delivery)).unwrap();
        }
    }

    fn take(&mut self, said: &Said) {
        let worker = &mut self.workers[said.worker];
        if worker.generation != said.generation {
            return;
        }
        let (delivery, outcome) = said.line.split_once(' ').unwrap();
        let delivery: usize = delivery.parse().unwrap();
        let place = worker.unconfirmed.iter().position(|other| *other == delivery).unwrap();
        worker.unconfirmed.swap_remove(place);
        match outcome.split_once(' ').unwrap() {
            ("again", why) => {
                *self.again.entry(why.to_owned()).or_default() += 1;
                self.waiting.push_back(delivery);
            }
            (how, tracking) => {
                self.tracking.entry(order_of(delivery)).or_default().insert(tracking.to_owned());
                *self.ran.entry(order_of(delivery)).or_default() += u32::from(how == "ran");
            }
        }
    }

    /// Kills or freezes a worker, whatever it is doing.
    fn disturb(&mut self) {
        let number = self.seeded.index(self.workers.len());
        if self.workers[number].frozen_until.is_some() {
            return;
        }
        if self.seeded.below(2) == 0 {
            self.kills += 1;
            let next = self.start(number, self.workers[number].generation + 1);
            let mut old = std::mem::replace(&mut self.workers[number], next);
            old.child.kill().unwrap();
            old.child.wait().unwrap();
            self.waiting.extend(old.unconfirmed);
        } else {
            self.stops += 1;
            // Half of them for longer than the lease lasts.
            let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap();
            let time = Duration::from_millis(50 + self.seeded.below(2 * ttl_ms));
            let worker = &mut self.workers[number];
            worker.frozen_until = Some(Instant::now() + time);
            kill_process(Pid::from_child(&worker.child), Signal::STOP).unwrap();
        }
    }

    fn thaw(&mut self, now: Instant) {
        for worker in &mut self.workers {
            if worker.frozen_until.is_some_and(|until| until <= now) {
                worker.frozen_until = None;
                kill_process(Pid::from_child(&worker.child), Signal::CONT).unwrap();
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

fn order_of(delivery: usize) -> String {
    format!("A{}", delivery / 2)
}
