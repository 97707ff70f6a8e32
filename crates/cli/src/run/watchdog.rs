//! The watchdog: a small process that kills the command's group when the wrapper dies, or when the wrapper is
//! frozen until the lease can have ended. It holds the read end of a pipe whose only lasting write end is the
//! wrapper's, so the kernel tells it of any death of the wrapper.
//!
//! It does not know the store. It cannot see processes that left the group, and cannot kill those of another
//! user.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use leasehold::core::{Clock, Moment, SystemClock};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use super::spawn;
use crate::output::say;

/// The first argument that makes this program a watchdog. Not for users.
pub(crate) const ARGUMENT: &str = "__watchdog";

/// Its name in process lists: `killall leasehold` must not hit it together with the wrapper.
#[cfg(target_os = "linux")]
const PROCESS_NAME: &std::ffi::CStr = c"lh-watchdog";
/// A watchdog that keeps being killed is started again this often.
const RESTARTS_MOST: u32 = 10;
/// The longest sleep: timers do not count the time a machine sleeps.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the wrapper tells the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// This is the group to kill.
    Group(Pid),
    /// Kill it at this moment unless a later one is told before.
    KillAt(Moment),
}

impl Message {
    /// Short enough that the kernel never splits it.
    const BYTES: usize = 9;

    /// The message as it is sent. Does not allocate.
    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let (tag, value) = match self {
            Self::Group(pid) => (b'g', u64::from(pid.as_raw_nonzero().get().unsigned_abs())),
            Self::KillAt(moment) => {
                (b'k', u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX))
            }
        };
        let mut bytes = [tag; Self::BYTES];
        bytes[1..].copy_from_slice(&value.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [tag, value @ ..] = bytes;
        let value = u64::from_be_bytes(value);
        match tag {
            b'g' => i32::try_from(value).ok().and_then(Pid::from_raw).map(Self::Group),
            b'k' => Some(Self::KillAt(Moment::from_origin(Duration::from_nanos(value)))),
            _ => None,
        }
    }
}

/// The wrapper's side. Dropping it without [`Watchdog::dismiss`] kills the group.
pub(crate) struct Watchdog {
    pipe: OwnedFd,
    process: Pid,
    group: Option<Pid>,
    kill_at: Moment,
    restarts: u32,
}

impl Watchdog {
    /// Starts a watchdog for a lease that is safe until this moment.
    pub(crate) fn start(kill_at: Moment) -> io::Result<Self> {
        let (pipe, process) = start_process()?;
        let watchdog = Self { pipe, process, group: None, kill_at, restarts: 0 };
        watchdog.tell(Message::KillAt(kill_at))?;
        Ok(watchdog)
    }

    /// Its process.
    pub(crate) fn process(&self) -> Pid {
        self.process
    }

    /// A handle to announce a child with, for [`spawn::in_own_group`].
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// The child announced itself: remember it, should the watchdog have to be started again.
    pub(crate) fn watches(&mut self, group: Pid) {
        self.group = Some(group);
    }

    /// The lease is safe until this moment now.
    pub(crate) fn kill_at(&mut self, moment: Moment) {
        if moment > self.kill_at {
            self.kill_at = moment;
            // A dead one is noticed as a child that ended; a frozen one, whose pipe is full, is the wrapper's
            // frozen neighbour at worst: the wrapper itself still kills in time.
            let _ = self.tell(Message::KillAt(moment));
        }
    }

    /// Its process has ended, which it does not do by itself: start another.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        self.restarts += 1;
        if self.restarts > RESTARTS_MOST {
            return Err(io::Error::other(format!("it was killed {RESTARTS_MOST} times")));
        }
        (self.pipe, self.process) = start_process()?;
        self.tell(Message::KillAt(self.kill_at))?;
        self.group.map_or(Ok(()), |group| self.tell(Message::Group(group)))
    }

    /// Nothing is left to be killed: end it. It is waited for, since the first process of a container may never
    /// do that.
    pub(crate) fn dismiss(self) {
        // A dead one needs no killing.
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }

    fn tell(&self, message: Message) -> io::Result<()> {
        rustix::io::write(&self.pipe, &message.encode())?;
        Ok(())
    }
}

fn start_process() -> io::Result<(OwnedFd, Pid)> {
    let (read_end, write_end) = io::pipe()?;
    rustix::io::ioctl_fionbio(&write_end, true)?;
    let mut command = Command::new(this_program()?);
    command
        .arg0(OsStr::new("leasehold"))
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(read_end))
        .stdout(Stdio::null());
    let process = spawn::in_own_session(command)?;
    Ok((write_end.into(), process))
}

/// This very program, also after its file was replaced by an upgrade.
fn this_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// The watchdog itself: runs until the wrapper ends it, or has died.
pub(crate) fn main() -> ExitCode {
    // Nobody but the wrapper tells it when to end. It has one thread, so this covers the process.
    let _ = SigSet::all().thread_block();
    #[cfg(target_os = "linux")]
    // A name in a list is a convenience.
    let _ = rustix::thread::set_name(PROCESS_NAME);
    let input = io::stdin();
    let mut group = None;
    let mut kill_at = Moment::NEVER;
    loop {
        match next_message(input.as_fd(), kill_at) {
            Next::Told(Message::Group(pid)) => group = Some(pid),
            Next::Told(Message::KillAt(moment)) => kill_at = moment,
            Next::TimeIsOver => {
                kill(group, "the lease could not be renewed in time, as its wrapper does not run");
                kill_at = Moment::NEVER;
            }
            Next::Nothing => {}
            Next::WrapperDied => {
                kill(group, "its wrapper died");
                return ExitCode::SUCCESS;
            }
        }
    }
}

enum Next {
    Told(Message),
    TimeIsOver,
    Nothing,
    WrapperDied,
}

fn next_message(input: std::os::fd::BorrowedFd<'_>, kill_at: Moment) -> Next {
    let left = kill_at.since(SystemClock.now());
    let timeout = Timespec::try_from(left.min(LOOK_AGAIN)).ok();
    let mut polled = [PollFd::from_borrowed_fd(input, PollFlags::IN)];
    match poll(&mut polled, timeout.as_ref()) {
        Ok(0) if left.is_zero() => return Next::TimeIsOver,
        Ok(0) | Err(Errno::INTR) => return Next::Nothing,
        Ok(_) => {}
        Err(_) => return Next::WrapperDied,
    }
    let mut bytes = [0; Message::BYTES];
    match rustix::io::read(input, &mut bytes) {
        Ok(Message::BYTES) => Message::decode(bytes).map_or(Next::WrapperDied, Next::Told),
        Err(Errno::INTR | Errno::AGAIN) => Next::Nothing,
        Ok(_) | Err(_) => Next::WrapperDied,
    }
}

fn kill(group: Option<Pid>, why: &str) {
    let Some(group) = group else { return };
    if kill_process_group(group, Signal::KILL).is_ok() {
        say(format_args!("killed the command: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let moment = Moment::from_origin(Duration::from_millis(1_234_567_890));
        for message in [Message::Group(Pid::from_raw(4_194_303).unwrap()), Message::KillAt(moment)] {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        assert_eq!(Message::decode(*b"gibberish"), None);
    }
}
