//! The worker processes of the soak: starts, kills, stops and reads them. Owns no judgement.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::AnyError;
use super::line::{Line, Micros, now};

/// What the judge is told, in the order in which it became known here.
#[derive(Debug)]
pub(super) enum News {
    /// A worker wrote a line.
    Said { worker: usize, life: u64, line: Result<Line, String> },
    /// A worker was killed; nothing it wrote later than this counts.
    Killed { worker: usize, life: u64, at: Micros },
    /// A worker's output has ended: every line of that life is here.
    Silent { worker: usize, life: u64 },
    /// A worker ended by itself, which it must not.
    Died { worker: usize, how: String },
}

/// All workers.
pub(super) struct Crew {
    store: String,
    folder: PathBuf,
    seed: u64,
    news: Sender<News>,
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    life: u64,
}

impl Crew {
    pub(super) fn start(
        store: &str,
        folder: &Path,
        count: usize,
        seed: u64,
        news: Sender<News>,
    ) -> Result<Self, AnyError> {
        let (store, folder) = (store.to_owned(), folder.to_owned());
        let mut crew = Self { store, folder, seed, news, workers: Vec::new() };
        for worker in 0..count {
            let started = crew.launch(worker, 0)?;
            crew.workers.push(started);
        }
        Ok(crew)
    }

    fn launch(&self, worker: usize, life: u64) -> Result<Worker, AnyError> {
        let seed = self.seed.wrapping_add(life.wrapping_mul(1_000)).wrapping_add(worker as u64);
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .arg(&self.store)
            .arg(&self.folder)
            .args([worker.to_string(), seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        if let Some(stdout) = child.stdout.take() {
            let news = self.news.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // Nobody listens any more when the soak has failed already.
                    let _ = news.send(News::Said { worker, life, line: line.parse() });
                }
                let _ = news.send(News::Silent { worker, life });
            });
        }
        Ok(Worker { child, stdin, life })
    }

    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Kills a worker without warning and starts another in its place.
    pub(super) fn kill(&mut self, worker: usize) -> Result<(), AnyError> {
        let old = &mut self.workers[worker];
        let life = old.life;
        old.child.kill()?;
        old.child.wait()?;
        let _ = self.news.send(News::Killed { worker, life, at: now() });
        self.workers[worker] = self.launch(worker, life + 1)?;
        Ok(())
    }

    /// Stops a worker wherever it is, or lets it go on.
    pub(super) fn freeze(&self, worker: usize, stopped: bool) -> Result<(), AnyError> {
        let signal = if stopped { Signal::STOP } else { Signal::CONT };
        Ok(kill_process(Pid::from_child(&self.workers[worker].child), signal)?)
    }

    /// Reports workers that ended although nobody told them to.
    pub(super) fn look(&mut self) -> Result<(), AnyError> {
        for (worker, running) in self.workers.iter_mut().enumerate() {
            if let Some(status) = running.child.try_wait()? {
                let _ = self.news.send(News::Died { worker, how: status.to_string() });
            }
        }
        Ok(())
    }

    /// Reports workers that did not end as they were asked to.
    fn report_ends(&mut self) -> Result<(), AnyError> {
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let how = match worker.child.try_wait()? {
                Some(status) if status.success() => continue,
                Some(status) => status.to_string(),
                None => "it was asked to stop and did not".to_owned(),
            };
            let _ = self.news.send(News::Died { worker: number, how });
        }
        Ok(())
    }
}

/// Lets every worker finish what it does and end.
pub(super) fn finish(crew: &Mutex<Crew>, limit: Duration) -> Result<(), AnyError> {
    // Not locked all the time: workers that are stopped have to be woken.
    let locked = || crew.lock().unwrap_or_else(PoisonError::into_inner);
    for worker in &mut locked().workers {
        worker.stdin.take();
    }
    let ends = Instant::now() + limit;
    while Instant::now() < ends {
        if locked().workers.iter_mut().all(|worker| matches!(worker.child.try_wait(), Ok(Some(_)))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    locked().report_ends()
}

impl Drop for Crew {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // A worker that has ended cannot be killed, and that is as well.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}
