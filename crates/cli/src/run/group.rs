//! The processes of a command: its process group and, on Linux, everything it left to us by dying first.
//!
//! On Linux this process is a *child subreaper*: descendants whose parent dies become its children even if
//! they left the group (`setsid`, daemons). Elsewhere only the group is known, and a daemon gets away.

use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, wait,
};

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it.
    Signaled(u8),
    /// It could not be started, which has this exit code.
    NotStarted(u8),
}

/// What became of a child of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The command ended.
    Ended(End),
    /// The command was stopped by this signal.
    Stopped(Signal),
    /// Another child ended.
    OtherEnded(Pid),
}

/// The processes of one command.
pub(crate) struct Group {
    leader: Pid,
    /// Children this process had before it started the command (`helper & exec leasehold run …`) and those it
    /// needs for itself.
    not_ours: Vec<Pid>,
    ended: bool,
}

impl Group {
    /// Makes descendants whose parent dies children of this process, where the system can.
    pub(crate) fn adopt_orphans() {
        #[cfg(target_os = "linux")]
        // An old kernel refuses; the group is then all that is known, as on other systems.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }

    /// The children this process has now.
    pub(crate) fn children_now() -> Vec<Pid> {
        children()
    }

    /// The group led by this child.
    pub(crate) fn of(leader: Pid, not_ours: Vec<Pid>) -> Self {
        Self { leader, not_ours, ended: false }
    }

    /// Its number.
    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// Names one more child that is not the command's.
    pub(crate) fn exclude(&mut self, child: Pid) {
        self.not_ours.push(child);
    }

    /// Takes the next change, if there is one.
    pub(crate) fn next_change(&mut self) -> Option<Change> {
        loop {
            let (pid, status) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED).ok()??;
            if pid != self.leader {
                if status.exited() || status.signaled() {
                    return Some(Change::OtherEnded(pid));
                }
                continue;
            }
            if let Some(signal) = status.stopping_signal().and_then(Signal::from_named_raw) {
                return Some(Change::Stopped(signal));
            }
            let end = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => End::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
                (None, Some(signal)) => End::Signaled(u8::try_from(signal).unwrap_or(u8::MAX)),
                (None, None) => continue,
            };
            self.ended = true;
            return Some(Change::Ended(end));
        }
    }

    /// Sends a signal to all of them. What cannot be reached (it runs as another user) is told in the error.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut result = match kill_process_group(self.leader, signal) {
            Err(Errno::SRCH) => Ok(()),
            other => other,
        };
        for child in self.adopted() {
            match kill_process(child, signal) {
                Err(Errno::SRCH) | Ok(()) => {}
                refused => result = refused,
            }
        }
        Ok(result?)
    }

    /// Whether none of them is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.ended && test_kill_process_group(self.leader) == Err(Errno::SRCH) && self.adopted().is_empty()
    }

    /// Children left to this process by the command's processes that died.
    fn adopted(&self) -> Vec<Pid> {
        if !cfg!(target_os = "linux") {
            return Vec::new();
        }
        children().into_iter().filter(|pid| *pid != self.leader && !self.not_ours.contains(pid)).collect()
    }
}

/// The children of this process, where the system lists them.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .filter_map(Pid::from_raw)
        .collect()
}
