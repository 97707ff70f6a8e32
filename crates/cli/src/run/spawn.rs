//! Starts processes that need something done between fork and exec: the command, and the watchdog.
//!
//! `unsafe` is allowed here and nowhere else in this crate, for `CommandExt::pre_exec`: what runs there may
//! neither allocate nor take a lock, since another thread may hold it in the parent. The closures below make
//! system calls only. There is no safe way to announce a child to the watchdog, and to give it the terminal,
//! before its program can run.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, getpid, getppid, setsid};

use super::terminal::Terminal;
use super::watchdog::Message;

/// Starts a process in a session of its own, out of reach of the terminal and of signals to our group.
pub(crate) fn in_own_session(mut command: Command) -> io::Result<Pid> {
    // SAFETY: setsid is a system call and nothing else.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            Ok(())
        });
    }
    started(&mut command)
}

/// Starts a process in a group of its own. Before its program runs the watchdog knows it and, if a terminal is
/// given, it is in the foreground. Whatever happens to this process then, the group does not outlive it.
pub(crate) fn in_own_group(
    mut command: Command,
    watchdog: OwnedFd,
    terminal: Option<Terminal>,
) -> io::Result<Pid> {
    let parent = getpid();
    command.process_group(0);
    // SAFETY: only system calls; the message is built on the stack.
    unsafe {
        command.pre_exec(move || {
            die_with(parent)?;
            rustix::io::write(&watchdog, &Message::Group(getpid()).encode())?;
            if let Some(terminal) = &terminal {
                terminal.give_to(getpid());
            }
            Ok(())
        });
    }
    started(&mut command)
}

fn started(command: &mut Command) -> io::Result<Pid> {
    let child = command.spawn()?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the system gave an unusable process id"))
}

/// Asks the kernel to kill this process when its parent dies, in case the watchdog is killed together with the
/// parent (`killall -9`). It covers this one process only.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::CHILD.into()) }
}

#[cfg(not(target_os = "linux"))]
fn die_with(parent: Pid) -> io::Result<()> {
    if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::CHILD.into()) }
}
