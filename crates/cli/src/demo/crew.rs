//! The worker processes as the demo sees them: started, spoken to, heard, frozen, continued, and certainly gone in
//! the end. When to do which is decided elsewhere.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::wire::{GO, Job, Report, START};
use super::worker;
use crate::failure::Failure;

/// Reports that may wait to be read before a worker has to wait.
const REPORTS_MOST: usize = 1_024;
/// What a worker may say on standard error before it is cut off.
const WORDS_MOST: u64 = 16 * 1024;

/// All workers of one run. Dropping it kills those that still live.
pub(super) struct Crew {
    workers: Vec<Worker>,
    heard: Receiver<(usize, Heard)>,
}

struct Worker {
    label: Arc<str>,
    child: Child,
    input: ChildStdin,
    pid: Pid,
    last_words: Option<JoinHandle<String>>,
}

/// What came from a worker.
pub(super) enum Heard {
    /// A report.
    Report(Report),
    /// Its output ended.
    Nothing,
    /// Its output could not be understood.
    Nonsense(String),
}

impl Crew {
    /// Starts a worker for each job and gives it to it.
    pub(super) async fn start(jobs: &[Job]) -> Result<Self, Failure> {
        let (send, heard) = channel(REPORTS_MOST);
        let mut crew = Self { workers: Vec::new(), heard };
        for job in jobs {
            if let Err(failure) = crew.hire(job, send.clone()).await {
                crew.end().await;
                return Err(failure);
            }
        }
        Ok(crew)
    }

    async fn hire(&mut self, job: &Job, reports: Sender<(usize, Heard)>) -> Result<(), Failure> {
        let index = self.workers.len();
        let cannot =
            |error: io::Error| Failure::other(format!("{} cannot be given its work: {error}", job.label));
        self.workers.push(Worker::start(index, job, reports).map_err(cannot)?);
        let mut line = serde_json::to_string(job).map_err(|error| cannot(error.into()))?;
        line.push('\n');
        self.tell(index, &line).await
    }

    /// What came next from a worker, and whose it is. It can be dropped at any time without a loss.
    pub(super) async fn next(&mut self) -> Result<(usize, Heard), Failure> {
        self.heard.recv().await.ok_or_else(|| Failure::other("all workers are gone"))
    }

    /// The report in what came from a worker. A worker that failed or died is an error.
    pub(super) async fn report(&mut self, index: usize, heard: Heard) -> Result<Report, Failure> {
        let label = &self.workers[index].label;
        match heard {
            Heard::Report(Report::Failed { code, message }) => {
                Err(Failure::new(code, format!("{label}: {message}")))
            }
            Heard::Report(report) => Ok(report),
            Heard::Nonsense(line) => Err(Failure::other(format!("{label} reported nonsense: {line}"))),
            Heard::Nothing => Err(self.obituary(index).await),
        }
    }

    /// Tells every worker to begin.
    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        for index in 0..self.workers.len() {
            self.tell(index, START).await?;
        }
        Ok(())
    }

    /// Tells a worker that waits at a stop to go on.
    pub(super) async fn go_on(&mut self, index: usize) -> Result<(), Failure> {
        self.tell(index, GO).await
    }

    /// Freezes a worker, with all its threads.
    pub(super) fn freeze(&self, index: usize) -> Result<(), Failure> {
        self.signal(index, Signal::STOP)
    }

    /// Lets a frozen worker run again.
    pub(super) fn thaw(&self, index: usize) -> Result<(), Failure> {
        self.signal(index, Signal::CONT)
    }

    /// Waits for all workers, which have nothing left to do, and checks that all of them ended well.
    pub(super) async fn dismiss(mut self) -> Result<(), Failure> {
        for index in 0..self.workers.len() {
            let status = self.workers[index].child.wait().await;
            if !status.is_ok_and(|status| status.success()) {
                return Err(self.obituary(index).await);
            }
        }
        Ok(())
    }

    /// Kills all workers and waits until they are gone.
    pub(super) async fn end(mut self) {
        for worker in &mut self.workers {
            // It fails only if the worker is gone already.
            let _ = worker.child.kill().await;
        }
    }

    async fn tell(&mut self, index: usize, line: &str) -> Result<(), Failure> {
        match self.workers[index].input.write_all(line.as_bytes()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.obituary(index).await),
        }
    }

    fn signal(&self, index: usize, signal: Signal) -> Result<(), Failure> {
        let worker = &self.workers[index];
        kill_process(worker.pid, signal)
            .map_err(|error| Failure::other(format!("{} cannot be signalled: {error}", worker.label)))
    }

    /// How a worker ended that should not have ended.
    async fn obituary(&mut self, index: usize) -> Failure {
        let worker = &mut self.workers[index];
        // A worker that closed its output is about to end; if it does not, it is ended.
        let _ = worker.child.start_kill();
        let status =
            worker.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        let words = match worker.last_words.take() {
            Some(words) => words.await.unwrap_or_default(),
            None => String::new(),
        };
        let words = words.trim();
        let said = if words.is_empty() { String::new() } else { format!(", and said: {words}") };
        Failure::other(format!("{} ended before its work was done ({status}){said}", worker.label))
    }
}

impl Worker {
    fn start(index: usize, job: &Job, reports: Sender<(usize, Heard)>) -> io::Result<Self> {
        let mut child = Command::new(this_program()?)
            .arg0("leasehold")
            .arg(worker::ARGUMENT)
            // A group of its own: the terminal's Ctrl-C and Ctrl-Z are for the demo, which looks after its workers.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let missing = || io::Error::other("it has no standard streams");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let words = child.stderr.take().ok_or_else(missing)?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or_else(missing)?;
        tokio::spawn(listen(index, output, reports));
        let last_words = Some(tokio::spawn(keep_last_words(words)));
        Ok(Self { label: job.label.as_str().into(), child, input, pid, last_words })
    }
}

async fn listen(index: usize, output: ChildStdout, reports: Sender<(usize, Heard)>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let heard = serde_json::from_str(&line).map_or(Heard::Nonsense(line), Heard::Report);
        let finished = matches!(heard, Heard::Report(Report::Finished));
        if reports.send((index, heard)).await.is_err() || finished {
            return;
        }
    }
    // Nobody has to be told if nobody listens any more.
    let _ = reports.send((index, Heard::Nothing)).await;
}

async fn keep_last_words(stream: ChildStderr) -> String {
    let mut words = Vec::new();
    // What was said until the stream failed is all there is.
    let _ = stream.take(WORDS_MOST).read_to_end(&mut words).await;
    String::from_utf8_lossy(&words).into_owned()
}

/// This very program, also after its file was replaced by an upgrade.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
