//! Starts, kills, freezes and counts the workers of the cross-process tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "each test binary uses its part of this module")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Workers in one folder on one store.
pub struct Workers {
    pub store: String,
    pub folder: PathBuf,
    pub ttl: Duration,
    pub mode: &'static str,
    pub linger: Duration,
    running: BTreeMap<usize, Worker>,
    /// Workers that were ever killed or stopped: their own waits say nothing.
    pub disturbed: BTreeSet<usize>,
    kills: u64,
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    sections: Receiver<()>,
}

impl Workers {
    pub fn new(store: &str, folder: &Path, ttl: Duration, mode: &'static str) -> Self {
        Self {
            store: store.to_owned(),
            folder: folder.to_owned(),
            ttl,
            mode,
            linger: Duration::ZERO,
            running: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            kills: 0,
        }
    }

    pub fn start(&mut self, worker: usize) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold-tests"))
            .args([&self.store, self.folder.to_str().unwrap(), &worker.to_string()])
            .args([&self.ttl.as_millis().to_string(), self.mode, &self.linger.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, sections) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for _line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(());
            }
        });
        let stdin = child.stdin.take();
        self.running.insert(worker, Worker { child, stdin, sections });
    }

    pub fn start_all(&mut self, count: usize) {
        for worker in 0..count {
            self.start(worker);
        }
    }

    /// Kills a worker without warning and starts another in its place.
    pub fn kill_and_restart(&mut self, worker: usize) {
        self.kill(worker);
        self.start(worker);
    }

    /// Stops a worker for a while, wherever it is.
    pub fn freeze(&mut self, worker: usize, time: Duration) {
        self.disturbed.insert(worker);
        self.signal(worker, Signal::STOP);
        std::thread::sleep(time);
        self.signal(worker, Signal::CONT);
    }

    /// Stops a worker for a while between its read and its write. False if it got into no section in time.
    pub fn freeze_in_section(&mut self, worker: usize, time: Duration) -> bool {
        self.disturbed.insert(worker);
        while self.running[&worker].sections.try_recv().is_ok() {}
        let entered = self.wait_for_section(worker);
        if entered {
            self.freeze(worker, time);
        }
        entered
    }

    /// Waits until a worker gets into its next section. False if it does not in time.
    pub fn wait_for_section(&self, worker: usize) -> bool {
        let sections = &self.running[&worker].sections;
        sections.recv_timeout(self.ttl + Duration::from_secs(20)).is_ok()
    }

    /// Kills a worker without warning.
    pub fn kill(&mut self, worker: usize) {
        self.disturbed.insert(worker);
        self.kills += 1;
        let mut old = self.running.remove(&worker).unwrap();
        old.child.kill().unwrap();
        old.child.wait().unwrap();
    }

    pub fn process_id(&self, worker: usize) -> u32 {
        self.running[&worker].child.id()
    }

    /// Lets every worker finish its section and end; fails if one does not, or ends with an error.
    pub fn finish(&mut self) {
        for worker in self.running.values_mut() {
            worker.stdin.take();
        }
        let ends = Instant::now() + self.ttl + Duration::from_secs(20);
        for (number, worker) in &mut self.running {
            loop {
                match worker.child.try_wait().unwrap() {
                    Some(status) => {
                        assert!(status.success(), "worker {number} ended with {status}");
                        break;
                    }
                    None if Instant::now() > ends => panic!("worker {number} is stuck"),
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
        self.running.clear();
    }

    fn signal(&self, worker: usize, signal: Signal) {
        let pid = Pid::from_child(&self.running[&worker].child);
        kill_process(pid, signal).unwrap();
    }

    /// What the counter file and the workers' logs say.
    pub fn tally(&self) -> Tally {
        let counted: BTreeMap<usize, u64> =
            serde_json::from_slice(&std::fs::read(self.folder.join("counter.json")).unwrap()).unwrap();
        let mut tally = Tally { counted: counted.values().sum(), kills: self.kills, ..Tally::default() };
        for worker in 0.. {
            let Ok(log) = std::fs::read_to_string(self.folder.join(format!("log-{worker}"))) else { break };
            let (mut added, mut newest) = (0, 0);
            for line in log.lines() {
                let fields: Vec<&str> = line.split(' ').collect();
                match fields[0] {
                    "added" => added += 1,
                    "refused" => tally.refused += 1,
                    "stopped" => tally.stopped += 1,
                    "retry" => tally.retries += 1,
                    other => panic!("worker {worker} logged {other:?}"),
                }
                if fields[0] != "retry" {
                    let token = fields[1].parse().unwrap();
                    assert!(token > newest, "worker {worker} got the token {token} after {newest}");
                    newest = token;
                    tally.tokens.push(token);
                }
                if !self.disturbed.contains(&worker) {
                    tally.longest_wait =
                        tally.longest_wait.max(Duration::from_millis(fields[2].parse().unwrap()));
                }
            }
            tally.added += added;
            let counted = counted.get(&worker).copied().unwrap_or(0);
            tally.lost_updates += added.saturating_sub(counted);
            tally.unlogged += counted.saturating_sub(added);
        }
        tally
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in self.running.values_mut() {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

/// What the counter file and the workers' logs say together.
#[derive(Default)]
pub struct Tally {
    /// The sum in the file.
    pub counted: u64,
    /// What the workers believe to have added.
    pub added: u64,
    /// Added but not in the file: overwritten by another holder.
    pub lost_updates: u64,
    /// In the file but not logged: killed in between.
    pub unlogged: u64,
    pub kills: u64,
    pub refused: u64,
    pub stopped: u64,
    pub retries: u64,
    pub longest_wait: Duration,
    pub tokens: Vec<u64>,
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            counted,
            added,
            lost_updates,
            unlogged,
            kills,
            refused,
            stopped,
            retries,
            longest_wait,
            tokens,
        } = self;
        write!(f, "{counted} counted, {added} added, {lost_updates} updates lost, {unlogged} not logged, ")?;
        write!(f, "{kills} killed, ")?;
        write!(
            f,
            "{refused} refused, {stopped} stopped, {retries} retries, longest wait {longest_wait:?}, "
        )?;
        write!(f, "{} grants", tokens.len())
    }
}

impl Tally {
    /// No two grants of the name may carry the same token.
    pub fn assert_tokens_unique(&self) {
        let mut tokens = self.tokens.clone();
        tokens.sort_unstable();
        let before = tokens.len();
        tokens.dedup();
        assert_eq!(tokens.len(), before, "a fencing token was given twice");
    }
}

/// A repeatable sequence of numbers (SplitMix64).
pub struct Seeded(pub u64);

impl Seeded {
    /// An index below the limit.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

/// Fails if the store still has the name after the last TTL.
pub fn assert_nothing_left(store: &str, ttl: Duration) {
    let client = leasehold::blocking::block_on(leasehold::Client::connect(store)).unwrap();
    let ends = Instant::now() + ttl + Duration::from_secs(5);
    loop {
        let left = leasehold::blocking::block_on(client.inspect("counter")).unwrap();
        match left {
            None => return,
            Some(left) if Instant::now() > ends => panic!("left in the store: {left:?}"),
            Some(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
