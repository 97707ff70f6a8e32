//! Starts server processes that cannot outlive the test process, even if that is killed. Owns no configuration.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use crate::lock;

type Request = (Command, Sender<io::Result<Child>>);

/// Starts the command from a thread that lives as long as this process. Linux kills the child when the *thread*
/// that started it ends, and the thread of a test ends long before a server that several tests share should.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                // Whoever asked has gone only if its thread was killed; the child is then of no use.
                if let Err(unclaimed) = reply.send(command.spawn())
                    && let Ok(mut child) = unclaimed.0
                {
                    let _ = child.kill();
                }
            }
        });
        Mutex::new(sender)
    });
    let (sender, reply) = channel();
    let gone = || io::Error::other("the thread that starts servers has ended");
    lock(spawner).send((command, sender)).map_err(|_| gone())?;
    reply.recv().map_err(|_| gone())?
}

/// A command for the program, so that it dies with this process where the system has `setpriv` (Linux with
/// util-linux); elsewhere only dropping the server ends it.
pub(super) fn dying_with_us(program: &std::path::Path) -> Command {
    static HAS_SETPRIV: OnceLock<bool> = OnceLock::new();
    let has_setpriv = *HAS_SETPRIV.get_or_init(|| {
        let try_it = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).output();
        try_it.is_ok_and(|output| output.status.success())
    });
    if !has_setpriv {
        return Command::new(program);
    }
    // setpriv replaces itself by the program, so the process id is the server's.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}
