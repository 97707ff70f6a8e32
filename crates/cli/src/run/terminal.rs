//! The controlling terminal and job control: who is in the foreground, and who stops together.
//!
//! A command that runs in a process group of its own must be given the terminal, or the first key it reads
//! stops it. With standard input and output on the terminal it gets it before it starts. Otherwise, in a
//! pipeline say, a neighbour (`… | less`) may need the terminal more, so the command gets it when it asks: the
//! kernel stops it for touching the terminal, and the supervisor hands it over and continues it.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as MaskedSignal};
use nix::unistd::{getpgid, getpgrp, getsid};
use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this process.
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
}

impl Terminal {
    /// Opens it; `None` when this process has none.
    pub(crate) fn controlling() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let modes = tcgetattr(&tty).ok();
        Some(Self { tty, modes })
    }

    /// Whether a command should have the terminal from its start.
    pub(crate) fn is_wanted_at_start(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours()
    }

    /// Whether our own group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        our_group().is_some_and(|ours| self.is_with(ours))
    }

    /// Whether this group is in the foreground.
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Puts a group into the foreground. Safe to call between fork and exec.
    pub(crate) fn give_to(&self, group: Pid) {
        // From the background this would stop us, unless the signal for that is blocked.
        let mut mask = SigSet::empty();
        mask.add(MaskedSignal::SIGTTOU);
        let blocked = mask.thread_block().is_ok();
        // A terminal that has hung up belongs to nobody: there is nothing to do about it.
        let _ = tcsetpgrp(&self.tty, group);
        if blocked {
            let _ = mask.thread_unblock();
        }
    }

    /// Puts our own group into the foreground again if this group is there.
    pub(crate) fn take_back_from(&self, group: Pid) {
        if self.is_with(group) {
            self.take_back();
        }
    }

    /// Puts our own group into the foreground.
    pub(crate) fn take_back(&self) {
        if let Some(ours) = our_group() {
            self.give_to(ours);
        }
    }

    /// Sets the modes the terminal had when it was opened: a killed editor could not do it itself.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_ours()) {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }

    /// Another handle on it, for the child between fork and exec.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { tty: self.tty.try_clone()?, modes: None })
    }
}

/// Whether a shell with job control manages this process: it would put us into a group of our own, continue
/// us after a stop, and is still there to do so.
pub(crate) fn has_job_control() -> bool {
    let Ok(session_leader) = getsid(None) else { return false };
    getpgid(Some(session_leader)).is_ok_and(|leaders_group| leaders_group != getpgrp())
}

/// Our own process group; `None` when it is outside the namespace of processes we see.
fn our_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// Stops this process and its neighbours in the same job, as the terminal would have, until somebody continues
/// them. Whoever started us from a script waits for the script, so stopping ourselves alone would not show.
pub(crate) fn stop_this_job() -> io::Result<()> {
    Ok(kill_current_process_group(Signal::STOP)?)
}

/// Whether the terminal stops processes with this signal.
pub(crate) fn is_stop_of_the_terminal(signal: Signal) -> bool {
    signal == Signal::TSTP || asks_for_the_terminal(signal)
}

/// Whether this signal stopped a process because it touched the terminal from the background.
pub(crate) fn asks_for_the_terminal(signal: Signal) -> bool {
    signal == Signal::TTIN || signal == Signal::TTOU
}
