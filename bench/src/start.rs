//! How long `leasehold run` on the embedded store takes to start a child, run it and give the name back, beside
//! `flock` on a file and beside the child alone.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::measure::{alternate, median, percentile};
use crate::report::Report;

const RUNS: usize = 200;
const TARGET_MS: f64 = 20.0;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let leasehold = std::env::current_exe()?.with_file_name("leasehold");
    if !leasehold.is_file() {
        return Err("build the command first: cargo build --release -p leasehold-cli".into());
    }
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let file = folder.path().join("file");
    let figures = alternate(
        RUNS,
        &mut [&mut || millis(Command::new("true")), &mut || millis(flock(&file)), &mut || {
            millis(leasehold_run(&leasehold, &store))
        }],
    );
    if figures.iter().flatten().any(|figure| figure.is_nan()) {
        return Err("a command failed (is flock installed?): the figures say nothing".into());
    }
    let mut report = Report::new(
        "start",
        "From the call to the end of the command, `true` as child. Milliseconds, 200 alternating runs.",
    );
    let row = |label: &str, place: usize| {
        let figure = |percent| format!("{:.2}", percentile(&figures[place], percent));
        vec![label.to_owned(), figure(50.0), figure(90.0)]
    };
    report.table(&[
        vec!["command".into(), "p50".into(), "p90".into()],
        row("true", 0),
        row("flock FILE true", 1),
        row("leasehold --store sqlite:FILE run NAME -- true", 2),
    ]);
    let above = median(&figures[2]) - median(&figures[1]);
    report.target(&format!("less than {TARGET_MS} ms above flock: {above:+.2} ms"), above < TARGET_MS);
    report.save()
}

fn flock(file: &Path) -> Command {
    let mut command = Command::new("flock");
    command.arg(file).arg("true");
    command
}

fn leasehold_run(leasehold: &Path, store: &str) -> Command {
    let mut command = Command::new(leasehold);
    command.args(["--store", store, "run", "job", "--", "true"]);
    command
}

fn millis(mut command: Command) -> f64 {
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if status.is_ok_and(|status| status.success()) { started.elapsed().as_secs_f64() * 1e3 } else { f64::NAN }
}
