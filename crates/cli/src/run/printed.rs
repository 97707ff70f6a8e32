//! What a command prints: captured as far as it can be kept, and passed on by a thread of its own, so that a reader
//! who is slow or reads nothing holds up neither the supervision of the command nor the keeping of its outcome.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use leasehold::MAX_RESULT_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

/// How often it is looked whether a command that prints nothing is gone.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The most that is read or written at once.
const PART: usize = 16 * 1024;

/// What was captured.
#[derive(Debug)]
pub(super) enum Captured {
    /// All that was printed.
    Whole(Vec<u8>),
    /// More than a result may have.
    TooLarge,
    /// It could not be read to its end.
    Broken,
}

/// What is printed, on its way to standard output.
pub(super) struct Printed {
    shared: Arc<Shared>,
    command_is_gone: Arc<AtomicBool>,
    captured: oneshot::Receiver<()>,
    passed_on: oneshot::Receiver<io::Result<()>>,
}

impl Printed {
    /// Captures what comes out of the pipe, and passes it on as it comes.
    pub(super) fn of(mut reader: PipeReader) -> io::Result<Self> {
        let (shared, command_is_gone) = (Arc::<Shared>::default(), Arc::<AtomicBool>::default());
        let (report, captured) = oneshot::channel();
        let (sink, is_gone) = (Arc::clone(&shared), Arc::clone(&command_is_gone));
        thread("capture", move || {
            capture(|part| next_part(&mut reader, part, &is_gone), &sink, report);
            sink.change(|buffer| buffer.ended = true);
        })?;
        let passed_on = passing_on(&shared)?;
        Ok(Self { shared, command_is_gone, captured, passed_on })
    }

    /// Prints a result that was kept.
    pub(super) fn kept(result: Vec<u8>) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        shared.change(|buffer| *buffer = Buffer { bytes: result, ended: true, ..Buffer::default() });
        let passed_on = passing_on(&shared)?;
        let (_, captured) = oneshot::channel();
        Ok(Self { shared, command_is_gone: Arc::default(), captured, passed_on })
    }

    /// The command and what it started have ended. A daemon elsewhere that has kept the pipe is waited for only as
    /// long as it goes on printing.
    pub(super) fn command_has_ended(&self) {
        self.command_is_gone.store(true, Ordering::Release);
    }

    /// What was printed, whether or not anybody has read it.
    pub(super) async fn captured(&mut self) -> Captured {
        if (&mut self.captured).await.is_err() {
            return Captured::Broken;
        }
        let buffer = self.shared.lock();
        if buffer.too_large { Captured::TooLarge } else { Captured::Whole(buffer.bytes.clone()) }
    }

    /// Waits until all of it has been passed on.
    pub(super) async fn passed_on(&mut self) -> io::Result<()> {
        match (&mut self.passed_on).await {
            // The reader had enough, which is its own affair.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(result) => result,
            Err(_) => Err(io::Error::other("the thread that writes it has ended")),
        }
    }
}

/// What the two threads share.
#[derive(Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    changed: Condvar,
}

#[derive(Default)]
struct Buffer {
    /// All that was printed; once that is too large to be kept, what is still to be written.
    bytes: Vec<u8>,
    /// How many of them are written.
    written: usize,
    too_large: bool,
    /// Nothing will be added.
    ended: bool,
    /// Nothing will be written any more.
    unread: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Buffer)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait_while(&self, condition: impl FnMut(&mut Buffer) -> bool) -> MutexGuard<'_, Buffer> {
        self.changed.wait_while(self.lock(), condition).unwrap_or_else(PoisonError::into_inner)
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(|_detached| ())
}

/// Reports as soon as it is known what can be kept. From then on the command waits for its reader, as under a pipe.
fn capture(
    mut next: impl FnMut(&mut [u8]) -> io::Result<usize>,
    shared: &Shared,
    report: oneshot::Sender<()>,
) {
    let mut report = Some(report);
    let mut part = [0; PART];
    loop {
        let length = match next(&mut part) {
            Ok(0) => break,
            Ok(length) => length,
            // What is not reported counts as broken.
            Err(_) => return,
        };
        let is_full =
            |buffer: &mut Buffer| buffer.too_large && !buffer.unread && buffer.bytes.len() > MAX_RESULT_BYTES;
        drop(shared.wait_while(is_full));
        shared.change(|buffer| {
            if buffer.too_large && buffer.unread {
                return;
            }
            buffer.bytes.extend_from_slice(&part[..length]);
            buffer.too_large |= buffer.bytes.len() > MAX_RESULT_BYTES;
        });
        if shared.lock().too_large
            && let Some(report) = report.take()
        {
            // Nobody waits any more if the lease was lost.
            let _ = report.send(());
        }
    }
    if let Some(report) = report {
        let _ = report.send(());
    }
}

/// Reads what comes next; nothing at the end.
fn next_part(reader: &mut PipeReader, part: &mut [u8], command_is_gone: &AtomicBool) -> io::Result<usize> {
    loop {
        let gone = command_is_gone.load(Ordering::Acquire);
        match poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&LOOK_AGAIN)) {
            Ok(0) if gone => return Ok(0),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => match reader.read(part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            },
            Err(error) => return Err(error.into()),
        }
    }
}

fn passing_on(shared: &Arc<Shared>) -> io::Result<oneshot::Receiver<io::Result<()>>> {
    // Not through `io::stdout`, which takes a descriptor that cannot be written for one nobody cares about.
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (report, passed_on) = oneshot::channel();
    let source = Arc::clone(shared);
    thread("output", move || {
        let result = pass_on(out, &source);
        // A reader that has gone away must not hold up a command whose output is kept.
        source.change(|buffer| buffer.unread = true);
        let _ = report.send(result);
    })?;
    Ok(passed_on)
}

fn pass_on(mut out: File, shared: &Shared) -> io::Result<()> {
    loop {
        let part = {
            let nothing_to_do = |buffer: &mut Buffer| buffer.written == buffer.bytes.len() && !buffer.ended;
            let buffer = shared.wait_while(nothing_to_do);
            let rest = &buffer.bytes[buffer.written..];
            rest[..rest.len().min(PART)].to_vec()
        };
        if part.is_empty() {
            return Ok(());
        }
        let written = write(&mut out, &part)?;
        shared.change(|buffer| {
            buffer.written += written;
            if buffer.too_large {
                buffer.bytes.drain(..buffer.written);
                buffer.written = 0;
            }
        });
    }
}

/// Writes some of it, when it can be.
fn write(out: &mut File, part: &[u8]) -> io::Result<usize> {
    loop {
        match out.write(part) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Others have set the pipe or terminal so.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(out, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            other => return other,
        }
    }
}
