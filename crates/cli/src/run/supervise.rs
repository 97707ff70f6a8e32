//! Watches a running command and the lease it runs under: passes signals on, stops the command before the lease
//! can have ended, keeps to job control, and returns once none of the command's processes is left.
//!
//! It decides what is sent to the command and when. How long before the end of a lease that is, `timing`
//! says; what a process group and a terminal are, `group` and `terminal`.

use std::time::Duration;

use leasehold::core::{Clock, Moment, SystemClock};
use leasehold::{Lease, LeaseState};
use rustix::process::Signal;

use super::group::{Change, End, Group};
use super::signals::{Signals, asks_to_end};
use super::terminal::{self, Terminal};
use super::timing::{Due, Timing};
use super::watchdog::Watchdog;
use crate::durations::show;
use crate::output::say;

/// What the command left behind may end by itself for this long, as the last writers of a pipeline do.
const LINGER: Duration = Duration::from_secs(1);
/// How often it is looked whether processes that are not our children are gone.
const LOOK_FOR_THE_REST: Duration = Duration::from_millis(20);

/// How a supervised command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What became of the command itself.
    pub(crate) end: End,
    /// Whether it had to be stopped on account of its lease.
    pub(crate) lost: bool,
    /// The first signal that asked this process, and through it the command, to end.
    pub(crate) asked_to_end: Option<Signal>,
    /// Whether that came before the command had ended.
    pub(crate) asked_while_it_ran: bool,
}

impl Outcome {
    /// Of a command that could not be started, with the exit code that says so.
    pub(crate) fn not_started(code: u8) -> Self {
        Self { end: End::NotStarted(code), lost: false, asked_to_end: None, asked_while_it_ran: false }
    }
}

/// A command under supervision.
pub(crate) struct Supervisor<'a> {
    lease: &'a Lease,
    renewed: bool,
    timing: Timing,
    /// The lease was certain to last until here when it was last looked at.
    safe_until: Moment,
    group: Group,
    watchdog: Watchdog,
    signals: &'a mut Signals,
    terminal: Option<Terminal>,
    end: Option<(End, Moment)>,
    stopping: Option<Stopping>,
    lost: bool,
    asked_to_end: Option<Signal>,
    asked_while_it_ran: bool,
    paused: Option<Paused>,
}

/// The command was told to stop.
struct Stopping {
    kill_at: Moment,
    killed: bool,
}

/// The command is stopped by job control.
struct Paused {
    wants_terminal: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        lease: &'a Lease,
        renewed: bool,
        timing: Timing,
        group: Group,
        watchdog: Watchdog,
        signals: &'a mut Signals,
        terminal: Option<Terminal>,
    ) -> Self {
        Self {
            lease,
            renewed,
            timing,
            safe_until: Moment::default(),
            group,
            watchdog,
            signals,
            terminal,
            end: None,
            stopping: None,
            lost: false,
            asked_to_end: None,
            asked_while_it_ran: false,
            paused: None,
        }
    }

    /// Runs until none of the command's processes is left.
    pub(crate) async fn run(mut self) -> Outcome {
        let end = loop {
            while let Some(change) = self.group.next_change() {
                self.take_change(change);
            }
            if let Some((end, _)) = self.end
                && self.group.is_gone()
            {
                break end;
            }
            self.mind_the_lease();
            self.mind_the_rest();
            let pause = self.until_next_look();
            tokio::select! {
                signal = self.signals.next() => self.take_signal(signal),
                _ = self.lease.lost(), if !self.lost => {}
                () = tokio::time::sleep(pause) => {}
            }
        };
        self.watchdog.dismiss();
        if let Some(terminal) = &self.terminal {
            terminal.take_back_from(self.group.id());
            if matches!(end, End::Signaled(_)) {
                terminal.restore_modes();
            }
        }
        Outcome {
            end,
            lost: self.lost,
            asked_to_end: self.asked_to_end,
            asked_while_it_ran: self.asked_while_it_ran,
        }
    }

    fn take_change(&mut self, change: Change) {
        match change {
            Change::Ended(end) => {
                self.end = Some((end, SystemClock.now()));
                self.paused = None;
            }
            Change::Stopped(signal) => self.command_was_stopped(signal),
            Change::OtherEnded(pid) if pid == self.watchdog.process() => {
                if let Err(error) = self.watchdog.start_again() {
                    say(format_args!(
                        "the watchdog cannot be started again ({error}): if this process is killed now, the \
                         command goes on without its lock"
                    ));
                }
                self.group.exclude(self.watchdog.process());
            }
            Change::OtherEnded(_) => {}
        }
    }

    /// Looks at the lease, and has the command stopped in time.
    fn mind_the_lease(&mut self) {
        let now = SystemClock.now();
        let Some(reason) = self.reason_to_stop(now) else { return };
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        say(format_args!("the lease of {} is lost: {reason}; stopping the command", self.lease.name()));
        self.stop_by(self.timing.kill_at(now, self.safe_until));
    }

    /// Why the command may not go on under this lease, if so. If it may, the watchdog is told until when.
    fn reason_to_stop(&mut self, now: Moment) -> Option<String> {
        if let LeaseState::Lost(cause) = self.lease.state() {
            return Some(cause.to_string());
        }
        let remaining = self.lease.remaining();
        self.safe_until = self.safe_until.max(now.after(remaining));
        self.watchdog.kill_at(self.safe_until.before(self.timing.watchdog_margin()));
        match self.timing.due(remaining) {
            Due::Nothing(_) => None,
            _ if self.renewed => Some("it could not be renewed in time".to_owned()),
            _ => Some("it is over soon, and --fixed does not let it be renewed".to_owned()),
        }
    }

    /// Tells the command to stop, and sets the moment at which it is killed if it has not.
    fn stop_by(&mut self, kill_at: Moment) {
        let now = SystemClock.now();
        let earlier = self.stopping.as_ref().map_or(Moment::NEVER, |stopping| stopping.kill_at);
        let killed = self.stopping.as_ref().is_some_and(|stopping| stopping.killed);
        self.stopping = Some(Stopping { kill_at: kill_at.min(earlier), killed });
        if kill_at > now {
            self.send(Signal::TERM);
            self.unpause();
        }
    }

    /// Kills what was told to stop and did not, and stops what the command left behind.
    fn mind_the_rest(&mut self) {
        let now = SystemClock.now();
        match (&mut self.stopping, self.end) {
            (Some(stopping), _) if now >= stopping.kill_at => {
                let first = !std::mem::replace(&mut stopping.killed, true);
                if first && self.end.is_none() {
                    say("the command did not stop: killing it");
                }
                if let Err(error) = self.group.signal(Signal::KILL)
                    && first
                {
                    say(format_args!("a process of the command cannot be killed ({error}): waiting for it"));
                }
            }
            (None, Some((_, ended_at))) if now >= ended_at.after(LINGER) => {
                say("the command has ended and left processes behind: stopping them");
                self.stop_by(now.after(self.timing.grace));
            }
            _ => {}
        }
    }

    fn until_next_look(&self) -> Duration {
        let now = SystemClock.now();
        let lease = match self.timing.due(self.lease.remaining()) {
            Due::Nothing(pause) if !self.lost => pause,
            _ => LINGER,
        };
        let kill = match &self.stopping {
            Some(stopping) if stopping.killed => LOOK_FOR_THE_REST,
            Some(stopping) => stopping.kill_at.since(now),
            None => LINGER,
        };
        let rest = if self.end.is_some() { LOOK_FOR_THE_REST } else { LINGER };
        // Timers of this runtime are no finer than a millisecond.
        lease.min(kill).min(rest).max(Duration::from_millis(1))
    }

    fn take_signal(&mut self, signal: Signal) {
        match signal {
            Signal::CHILD => {}
            Signal::CONT => self.continued(),
            _ => {
                self.send(signal);
                if asks_to_end(signal) {
                    self.asked_while_it_ran |= self.end.is_none();
                    self.asked_to_end.get_or_insert(signal);
                    self.unpause();
                }
                // Only TERM is a request that must be met: a command may well live on after the others.
                if signal == Signal::TERM && self.stopping.is_none() {
                    let kill_at = SystemClock.now().after(self.timing.grace);
                    self.stopping = Some(Stopping { kill_at, killed: false });
                }
            }
        }
    }

    /// The command stopped. If it only needs the terminal and we can give it, it goes on; if a shell manages
    /// us, we stop as well and so does our job; else nobody could ever continue us.
    fn command_was_stopped(&mut self, signal: Signal) {
        let ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        let had_it = self.terminal.as_ref().is_some_and(|terminal| terminal.is_with(self.group.id()));
        let asks = terminal::asks_for_the_terminal(signal);
        let by_terminal = terminal::is_stop_of_the_terminal(signal);
        self.paused = Some(Paused { wants_terminal: had_it || asks });
        if asks && ours {
            self.unpause();
        } else if !terminal::has_job_control() {
            if signal == Signal::TSTP {
                self.unpause();
            } else if asks {
                say("the command waits for the terminal, which another job has");
            }
        } else if had_it || by_terminal {
            say(format_args!(
                "stopped; the lease of {} is lost in {} unless this job is continued",
                self.lease.name(),
                show(self.lease.remaining())
            ));
            if let Err(error) = terminal::stop_this_job() {
                say(format_args!("this job cannot be stopped ({error}): continuing the command"));
                self.unpause();
            }
        }
    }

    /// We were continued after a stop, perhaps after so long that the lease is lost.
    fn continued(&mut self) {
        self.mind_the_lease();
        self.mind_the_rest();
        self.unpause();
        self.send(Signal::CONT);
    }

    /// Continues a command that is stopped, with the terminal if it had it and we have it.
    fn unpause(&mut self) {
        let Some(paused) = self.paused.take() else { return };
        if let Some(terminal) = &self.terminal
            && paused.wants_terminal
            && terminal.is_ours()
        {
            terminal.give_to(self.group.id());
        }
        self.send(Signal::CONT);
    }

    fn send(&self, signal: Signal) {
        if let Err(error) = self.group.signal(signal) {
            say(format_args!("a process of the command cannot be sent a signal: {error}"));
        }
    }
}
