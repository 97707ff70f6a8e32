//! The terminal: taken over while the view is shown, and given back as it was whatever ends it (a key, a
//! signal, an error, a panic). Nothing is decided here.

use std::io::{self, IsTerminal, Stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};

/// Whether the terminal is taken over at this moment; there is one per process.
static TAKEN: AtomicBool = AtomicBool::new(false);
static GIVE_BACK_ON_PANIC: Once = Once::new();

/// The terminal, taken over until this is dropped.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

/// Whether there is a terminal that a view can be shown on and keys be read from.
pub(crate) fn is_possible() -> bool {
    io::stdout().is_terminal()
        && io::stdin().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn open() -> io::Result<Self> {
        GIVE_BACK_ON_PANIC.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                report(panic);
            }));
        });
        take_over()?;
        match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Shows what `draw` draws.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !TAKEN.load(Ordering::Acquire) {
            return Err(io::Error::other("the terminal was given back after a panic"));
        }
        self.terminal.draw(draw).map(drop)
    }

    /// Gives the terminal to others while something is done, for instance while the process is stopped.
    pub(crate) fn lend(&mut self, meanwhile: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        give_back();
        let done = meanwhile();
        self.enter()?;
        done
    }

    /// Takes the terminal over again, whatever others wrote on it meanwhile.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        take_over()?;
        // `Terminal::clear` would ask the terminal where its cursor is, and the thread that reads keys would get
        // the answer.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::Release);
    execute!(io::stdout(), EnterAlternateScreen, Hide).inspect_err(|_| give_back())
}

fn give_back() {
    if TAKEN.swap(false, Ordering::AcqRel) {
        // A terminal that has gone away needs nothing.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// Set for the copy of this test program that is to panic in a terminal.
    const PANICS: &str = "LEASEHOLD_TEST_PANICS_ON_A_SCREEN";

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_readable() {
        if std::env::var_os(PANICS).is_some() {
            let _screen = Screen::open().unwrap();
            panic!("on the screen");
        }
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: tmux is not installed");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let modes = directory.path().join("modes");
        let tmux = |args: &[&str]| {
            let mut tmux = Command::new("tmux");
            tmux.args(["-L", "panic", "-f", "/dev/null"]).args(args).env_remove("TMUX");
            let output = tmux.env("TMUX_TMPDIR", directory.path()).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let this_test = "watch::screen::tests::a_panic_gives_the_terminal_back_and_is_readable";
        let program = std::env::current_exe().unwrap();
        let script = format!(
            "env {PANICS}=1 '{}' --exact {this_test} --nocapture; stty -a > '{modes}.new'; mv '{modes}.new' \
             '{modes}'; sleep 600",
            program.display(),
            modes = modes.display(),
        );
        tmux(&["new-session", "-d", "-x", "150", "-y", "40", &script]);
        let start = Instant::now();
        while !modes.exists() && start.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let shown = tmux(&["capture-pane", "-p"]);
        let flags = tmux(&["display-message", "-p", "#{alternate_on}#{cursor_flag}"]);
        tmux(&["kill-server"]);
        let modes = std::fs::read_to_string(&modes).unwrap();
        assert!(modes.contains(" icanon") && modes.contains(" echo "), "{modes}");
        assert_eq!(flags.trim(), "01", "the alternate screen is left, the cursor is seen:\n{shown}");
        assert!(shown.contains("on the screen"), "the panic can be read:\n{shown}");
    }
}
